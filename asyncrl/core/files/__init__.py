"""Files and folders: durable writes, folders of our own, files in memory and who owns them."""
