"""The report on one run or several: one HTML file that holds everything it shows and loads nothing from anywhere."""
