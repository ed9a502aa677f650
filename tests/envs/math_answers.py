r"""Expected answers as public data sets have them, with answers that are right and wrong; each right one counts in ``\boxed{}`` too."""

# ruff: noqa: E501, RUF001 - a shape is a line

from typing import NamedTuple


class Shape(NamedTuple):
    """An expected answer, and what may be answered."""

    of: str
    expected: object
    right: tuple[str, ...]
    wrong: tuple[str, ...]


SHAPES = [
    # GSM8K: a solution, with the number at its end
    Shape("gsm8k", "He has 12*100 = <<12*100=1200>>1,200.\n#### 1,200", ("1200", "1,200", "$1,200", "So 12*100=1200.\n#### 1200"), ("200", "1", "12", "#### 1200\n#### 1")),
    Shape("gsm8k", "#### 18", ("18", "$18", "18 dollars", "18.00", "She makes $18 every day.", "The answer is 18."), ("8", "1", "180", "18 or 19")),
    Shape("gsm8k", "#### -5", ("-5", "−5", "The answer is: -5"), ("5",)),
    Shape("gsm8k", "72", ("72", "72.", "**72**", "Natalia sold 48+24 = 72 clips.", "Answer: 72"), ("24", "48", "72 or 73", "73")),
    Shape("gsm8k", "0.5", ("0.5", "1/2", ".5", "\\frac12"), ("5", "0", "0.51")),
    # MATH: LaTeX, alone or in the box of a solution
    Shape("math", "We have $x^2=4$, so $x=\\pm2$, and the sum of squares is $\\boxed{8}$.", ("8", "$8$", "\\boxed{8}", "\\fbox{8}"), ("4", "2", "\\boxed{4} and 8")),
    Shape("math", "2\\sqrt{3}", ("2\\sqrt{3}", "$2\\sqrt3$", "2sqrt(3)", "\\sqrt{12}", "x = 2\\sqrt{3}"), ("2", "3", "\\sqrt{3}", "2\\sqrt{2}", "23")),
    Shape("math", "5\\pi", ("5\\pi", "5 \\pi", "5π", "5*pi", "\\pi \\cdot 5"), ("5", "\\pi", "15.7", "5\\pi^2")),
    Shape("math", "\\frac{3}{4}", ("3/4", "\\dfrac{3}{4}", "\\tfrac34", "0.75", "\\frac{6}{8}"), ("3", "4", "\\frac{4}{3}", "34")),
    Shape("math", "-\\frac{1}{3}", ("-1/3", "\\frac{-1}{3}", "\\dfrac{-1}{3}", "-\\frac13"), ("1/3", "-1", "3")),
    Shape("math", "10^{-3}", ("10^{-3}", "0.001", "\\frac{1}{1000}", "1e-3", "10^(-3)"), ("-3", "10", "3")),
    Shape("math", "1.2 \\times 10^{5}", ("1.2\\times10^5", "120000", "120,000", "1.2e5", "1.2 × 10^5"), ("1.2", "10", "5", "12")),
    Shape("math", "n(n+1)/2", ("\\frac{n(n+1)}{2}", "n(n+1)/2", "(n^2+n)/2"), ("2", "n", "n(n-1)/2")),
    Shape("math", "p - q", ("p - q", "p-q", "-q+p"), ("q", "p", "q - p")),
    Shape("math", "x^2+2x+1", ("(x+1)^2", "x^2 + 2x + 1", "1+2x+x^2", "x**2+2*x+1"), ("x^2", "1", "x^2+2x")),
    Shape("math", "y = 2x + 3", ("y=2x+3", "2x+3", "$y = 2x+3$", "y = 3 + 2x"), ("3", "2x", "y = 3x + 2")),
    Shape("math", "x = 5", ("5", "x=5", "x = 5."), ("x", "x = 6", "6")),
    Shape("math", "f(x) = x + 1", ("x+1", "f(x) = x+1", "1+x"), ("f(x)", "x", "1")),
    Shape("math", "\\log_2 3", ("\\log_2 3", "\\log_{2}{3}", "\\frac{\\ln 3}{\\ln 2}"), ("3", "2", "\\log_3 2")),
    Shape("math", "3 + 4i", ("3+4i", "4i+3"), ("3", "4i", "3-4i", "7")),
    Shape("math", "e^{i\\pi/3}", ("e^{i\\pi/3}", "e^{\\frac{i\\pi}{3}}"), ("3", "e", "e^{i\\pi}")),
    Shape("math", "0.\\overline{3}", ("1/3", "0.\\overline{3}", "\\frac13"), ("0", "3", "0.3")),
    Shape("math", "2.1\\overline{54}", ("2.1\\overline{54}", "237/110"), ("2.1", "54", "2.154")),
    Shape("math", "\\left(\\frac{1}{2}\\right)^{10}", ("\\frac{1}{1024}", "1/1024", "2^{-10}"), ("1/2", "10", "1024")),
    Shape("math", "\\sqrt[3]{2}", ("\\sqrt[3]{2}", "2^{1/3}", "2^{\\frac{1}{3}}"), ("2", "3", "\\sqrt{2}")),
    Shape("math", "6!", ("720", "6!"), ("6", "120")),
    Shape("math", "\\infty", ("\\infty", "infinity", "∞", "+\\infty"), ("-\\infty", "0", "8")),
    Shape("math", "\\text{Evelyn}", ("Evelyn", "evelyn", "\\text{Evelyn}", "\\mathrm{Evelyn}", "The answer is Evelyn."), ("Eve", "Briana", "E")),
    Shape("math", "\\text{even}", ("even", "Even.", "\\textbf{even}", "It is even"), ("odd", "neither")),
    Shape("math", "A and B", ("A and B", "A, B", "\\text{A and B}", "B and A"), ("A", "B", "A and C", "A, B, C")),
    Shape("math", "\\text{Monday morning}", ("Monday morning", "\\text{Monday morning}"), ("Monday", "morning", "Tuesday morning")),
    # DAPO and AIME: integers
    Shape("dapo", 34, ("34", "Answer: 34", "Answer: $34$", "Answer: \\boxed{34}", "34.0"), ("3", "4", "43", "Answer: 4", "Answer: 34 or 35")),
    Shape("dapo", "-7", ("Answer: -7", "-7"), ("7", "Answer: 7")),
    Shape("aime", "073", ("73", "073", "\\boxed{073}", "\\boxed{73}"), ("7", "3", "730", "37")),
    Shape("aime", "025", ("25", "025"), ("5", "0", "2", "26")),
    Shape("aime", 204, ("204", "$204$", "m+n = 199+5 = 204", "\\boxed{204}"), ("199", "5", "20")),
    # Multiple choice
    Shape("choice", "B", ("B", "(B)", "B.", "B)", "(B) 12", "\\text{(B)}", "\\textbf{(B)}", "The answer is B.", "The answer is (B).", "**B**", "Answer: B"), ("A", "b c", "12", "A, B", "(A) B", "AB", "ABCD", "A or B")),
    Shape("choice", "\\text{(C)}", ("C", "(C)", "\\text{(C)}", "\\textbf{(C) }", "C. 5"), ("c+1", "(D)", "5", "ABC", "(A), (B), (C)")),
    Shape("choice", "(D)", ("D", "(D)", "\\mathrm{(D)}"), ("E", "A", "all")),
    Shape("choice", "C", ("c", "(c)", "c) 12", "(c) a cat", "answer: c", "<answer> c </answer>", "Option C", "option c", "\\text{Option C}", "The answer is option C.", "The correct option is (c)", "Choice C: 12"), ("b", "(b)", "Option B", "a c", "(c) or (d)", "c or d", "c, d", "(d) c", "Option C or D", "It is not option C", "C is a letter", "a: 5, c: 6", "2c")),
    Shape("choice", "(C) 12", ("C", "(C)", "c", "12", "12.0", "C. 12", "The answer is (C) 12.", "Option C"), ("B", "(B)", "(B) 12", "13", "12 or 13", "(C) or (D)")),
    Shape("choice", "\\textbf{(C)}\\ -1", ("C", "(C)", "-1"), ("B", "1")),
    Shape("choice", "C) Paris", ("C", "Paris", "paris", "(c) Paris"), ("B", "London", "(B) Paris")),
    Shape("choice", "A. 5", ("A", "5", "a"), ("B", "6", "(B) 5")),
    Shape("choice", "(A) i", ("A", "i", "a"), ("I", "B", "-i")),
    Shape("choice", "(B) The cat sat on a mat today", ("B", "The cat sat on a mat today"), ("A", "cat")),
    Shape("choice", "Option C", ("C", "(C)", "option C"), ("B", "Option B")),
    Shape("choice", "A and C", ("a and c", "(a), (c)", "C, A"), ("a", "A", "a, b", "a, b, c")),
    # What looks like a choice, and is none
    Shape("no choice", "c", ("c",), ("C", "3", "(b)")),
    Shape("no choice", "a + c", ("a+c", "c+a"), ("a", "c", "A")),
    Shape("no choice", "(C) - 1", ("C-1", "-1 + C"), ("C", "(C)", "-1")),
    Shape("no choice", "A = 5", ("5", "A = 5"), ("A", "B = 6")),
    Shape("no choice", "12", ("12",), ("(C) 13", "c", "C")),
    Shape("yes or no", "Yes", ("Yes", "yes", "YES.", "\\text{Yes}", "The answer is yes."), ("No", "no", "Yes and no", "maybe", "Yes or No")),
    Shape("yes or no", True, ("True", "true", "\\text{True}"), ("False", "true or false")),
    Shape("yes or no", "None", ("None", "none"), ("0", "All")),
    # Units
    Shape("units", "\\dfrac{7}{2}\\text{ m}", ("\\frac{7}{2}\\text{ m}", "7/2 m", "3.5 m", "3.5 meters", "3.5\\,\\mathrm{m}"), ("7/2", "7", "2", "m", "3.5 cm", "7/2 m^2")),
    Shape("units", "12 \\text{ cm}^2", ("12 cm^2", "12\\text{ cm}^2", "12 square centimeters", "12\\,\\text{cm}^{2}", "12 square cm"), ("12 cm", "2", "144 cm^2", "12")),
    Shape("units", "5 \\text{ miles per hour}", ("5 miles per hour", "5\\text{ miles per hour}", "5.0 miles per hour"), ("5 miles", "5 hours")),
    Shape("units", "12\\text{ hours }30\\text{ minutes}", ("12 hours 30 minutes", "12\\text{ hours }30\\text{ minutes}", "12 h 30 min", "12 hours and 30 minutes"), ("30", "12", "12 hours", "30 minutes", "30 hours 12 minutes")),
    Shape("units", "5", ("5 cm", "5\\text{ cm}", "5 apples", "5\\%"), ("50 cm", "cm", "5 000")),
    Shape("units", "\\$32,\\!348", ("32348", "32,348", "\\$32,348", "$32,348", "\\$32{,}348", "32348 dollars"), ("348", "32", "3234")),
    Shape("units", "\\$0.75", ("0.75", "\\$0.75", "$0.75", "\\frac34"), ("75", "0", "0.7")),
    Shape("units", "90^\\circ", ("90", "90°", "90 degrees", "90^{\\circ}", "90^\\circ", "90\\degree"), ("9", "0", "180^\\circ", "90 cm^2 or 5")),
    # Percent
    Shape("percent", "50\\%", ("50\\%", "50%", "50", "50 percent", "0.5", "\\frac12"), ("5", "5\\%", "0.05", "500")),
    Shape("percent", "12.5", ("12.5", "12.5%", "12.5\\%", "\\frac{25}{2}"), ("12", "5", "125")),
    # Mixed numbers and thousands
    Shape("mixed", "1\\frac{1}{2}", ("1\\frac{1}{2}", "3/2", "1.5", "1 1/2", "1\\frac12"), ("1/2", "1", "11/2", "2")),
    Shape("mixed", "7 \\frac{3}{4}", ("7\\frac{3}{4}", "7 3/4", "31/4", "7.75"), ("3/4", "7", "21/4", "73/4")),
    Shape("mixed", "-2\\frac{1}{3}", ("-7/3", "-2\\frac13", "-2 1/3"), ("-5/3", "-2", "1/3", "7/3")),
    Shape("thousands", "1,234", ("1234", "1,234", "1{,}234", "1,\\!234", "1\\,234"), ("234", "1", "1.234", "1, 234, 5")),
    Shape("thousands", "12,345,678", ("12345678", "12,345,678"), ("678", "12", "12,345")),
    # Intervals and inequalities
    Shape("interval", "[1,2)", ("[1,2)", "[1, 2)", "$[1,2)$", "1 \\le x < 2", "x \\in [1,2)", "\\left[1,2\\right)", "2 > x \\ge 1"), ("(1,2)", "[1,2]", "1", "2", "[2,1)", "1,2")),
    Shape("interval", "[2, 5]", ("[2,5]", "\\left[2, 5\\right]", "2 \\leq x \\leq 5", "2 ≤ x ≤ 5"), ("5", "2", "(2,5)", "[2,5)")),
    Shape("interval", "(-\\infty, 3]", ("(-\\infty,3]", "x \\le 3", "x <= 3", "(-\\infty, 3]"), ("3", "x < 3", "(3, \\infty)", "x \\ge 3")),
    Shape("interval", "x > 3", ("x > 3", "(3,\\infty)", "x \\in (3,\\infty)", "(3, +\\infty)"), ("3", "x < 3", "x \\ge 3", "[3,\\infty)")),
    Shape("interval", "(-\\infty,-1)\\cup(1,\\infty)", ("(-\\infty,-1)\\cup(1,\\infty)", "(1,\\infty) \\cup (-\\infty,-1)", "(-∞,-1)∪(1,∞)", "x<-1 or x>1"), ("(1,\\infty)", "(-1,1)", "(-\\infty,1)\\cup(1,\\infty)")),
    # Points, sets, lists of solutions
    Shape("tuple", "(3, \\frac{\\pi}{2})", ("(3,\\pi/2)", "\\left(3, \\frac{\\pi}{2}\\right)", "\\left( 3, 0.5\\pi \\right)"), ("3", "(\\pi/2, 3)", "[3, \\pi/2]", "(3, \\pi)", "3, \\pi/2")),
    Shape("tuple", "(1,-2,3)", ("(1, -2, 3)", "(1,-2,3)"), ("(1,2,3)", "(1,-2)", "3", "(3,-2,1)")),
    Shape("set", "\\{1,2\\}", ("\\{2,1\\}", "{1,2}", "1, 2", "\\left\\{1, 2\\right\\}", "1 and 2"), ("1", "2", "\\{1\\}", "\\{1,2,3\\}", "\\{1,1\\}", "12")),
    Shape("set", "\\emptyset", ("\\emptyset", "\\varnothing", "\\{\\}", "∅"), ("0", "\\{0\\}")),
    Shape("set", "\\{5\\}", ("\\{5\\}", "5", "x = 5"), ("\\{5, 6\\}", "6")),
    Shape("list", "-1,0,1", ("-1,0,1", "-1, 0, 1", "1, 0, -1", "x = -1, 0, 1", "-1, 0 and 1", "-1, 0, and 1"), ("1", "-1", "0", "-1, 1", "-1,0,1,2", "101")),
    Shape("list", "2 \\text{ or } 3", ("2 or 3", "3 or 2", "2, 3", "2 \\text{ or } 3", "x=2 or x=3", "x = 2, x = 3"), ("2", "3", "2 or 4", "2 or 3 or 4", "23")),
    Shape("list", "\\pm 2", ("\\pm 2", "±2", "2, -2", "-2 and 2", "x = \\pm 2"), ("2", "-2", "\\pm 3", "0")),
    Shape("list", "1 \\pm \\sqrt{19}", ("1 \\pm \\sqrt{19}", "1+\\sqrt{19}, 1-\\sqrt{19}", "1-\\sqrt{19},1+\\sqrt{19}"), ("1", "19", "1+\\sqrt{19}", "\\pm\\sqrt{19}")),
    Shape("list", "(1,2), (3,4)", ("(1,2),(3,4)", "(3,4), (1,2)", "(1,2) and (3,4)"), ("(1,2)", "(1,2),(4,3)", "1,2,3,4")),
    # Matrices and vectors
    Shape("matrix", "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix} 1 & 2 \\\\ 3 & \\sqrt{16} \\end{bmatrix}"), ("1", "4", "\\begin{pmatrix}1&2\\\\3&5\\end{pmatrix}", "\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}", "\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}")),
    Shape("matrix", "\\begin{pmatrix} -2 \\\\ \\frac{1}{2} \\end{pmatrix}", ("\\begin{pmatrix}-2\\\\1/2\\end{pmatrix}", "\\begin{pmatrix} -2 \\\\ 0.5 \\end{pmatrix}"), ("-2", "1/2", "\\begin{pmatrix}-2&1/2\\end{pmatrix}")),
    # Times, ratios, other bases
    Shape("time", "10:30", ("10:30", "10:30.", "\\text{10:30}"), ("30", "10", "10:31", "1/3", "1030")),
    Shape("time", "10:30 \\text{ a.m.}", ("10:30 a.m.", "10:30 AM", "10:30\\text{ am}"), ("10:30 pm", "10:30 p.m.", "30")),
    Shape("ratio", "2:3", ("2:3", "2 : 3"), ("2", "3", "3:2")),
    Shape("base", "1011_2", ("1011_2", "1011_{2}", "1011_{\\text{two}}"), ("1011_3", "2", "11", "1111_2")),
    Shape("base", "2A_{16}", ("2A_{16}", "2a_{16}"), ("2A_8", "16", "2")),
    # Signs and spaces that models use
    Shape("signs", "2\\sqrt{5}", ("2√5", "2√(5)", "√20"), ("√5", "2√3", "25")),
    Shape("signs", "5\\text{ cm}", ("5cm", "5~\\text{cm}", "5\\mathrm{~cm}", "5 cm"), ("5m", "5 km", "5")),
    Shape("signs", "10\\text{ km/h}", ("10 km/h", "10km/h", "10\\,\\mathrm{km/h}"), ("10 km", "10 m/s")),
    Shape("signs", "\\ln 2", ("ln 2", "ln(2)", "\\log_e 2"), ("\\ln 3", "2", "log_2 2")),
    Shape("signs", "3.2\\times10^{-4}", ("3.2 × 10^-4", "3.2*10^-4", "0.00032"), ("3.2 × 10^4", "3.2")),
    Shape("signs", "\\binom{5}{2}", ("\\binom52", "10"), ("52", "\\binom53 + 1")),
    Shape("signs", "\\cos 20^\\circ", ("\\cos 20°", "cos 20°", "cos(20°)"), ("\\cos 20", "\\cos 70°")),
    Shape("signs", "8:30", ("08:30", "8:30"), ("8:03", "80:30")),
    Shape("signs", "x < 5", ("5 > x", "5>x", "(-\\infty,5)"), ("x > 5", "5 < x", "x \\le 5")),
    Shape("signs", "1 < x < 2", ("1<x<2", "2>x>1", "(1,2)"), ("1\\le x<2", "x<2")),
    Shape("signs", "1,000,000", ("1 000 000", "1 million", "1\\text{ million}", "10^6"), ("1", "1 000", "1 thousand")),
    Shape("signs", "\\$2.5 \\text{ million}", ("2,500,000", "2.5 million dollars", "$2.5 million"), ("2.5", "2.5 billion", "25 million")),
    Shape("signs", "\\text{(A)}", ("The correct option is A", "The correct option is (A)"), ("The correct option is B", "It is A or B")),
    # Guesses side by side, and what repeats the question
    Shape("guesses", "7", ("7", "\\boxed{7}"), ("7..8", "7|8", "7?8", "7&8", "7\\\\8", "7 8", "7; 8", "7#8", "\\ge 7", "7 million", "7 thousand", "7/8", "[7,8]", "7\\vee 8")),
    Shape("guesses", "42", ("42",), ("4 2", "4\\,2", "42 43", "42 or 43")),
    Shape("guesses", "B", ("(B) 12", "B. yes", "(B) a b c"), ("(B) or (C)", "(B), (C)", "B. C", "B. or C.", "B) or C)", "(B) (C)", "(B) and (C) are possible", "B:=C", "B: C")),
    Shape("guesses", "15", ("15",), ("3 \\cdot 5", "\\sum_{k=1}^{5} k", "\\max(15, 3)", "\\int_0^{15} 1 dx", "\\lim_{x \\to 15} x", "\\gcd(15, 30)")),
    Shape("guesses", "100000000000000001", ("100000000000000001", "100,000,000,000,000,001"), ("1.0e17", "10^{17}", "1.0 \\times 10^{17}", "100000000000000000")),
    Shape("guesses", "56088", ("56,088", "56088.0", "123 \\cdot 456 = 56088"), ("123 \\cdot 456", "123*456", "123 \\times 456", "123(456)", "(123)(456)", "56087+1", "56089-1", "112176/2", "\\frac{112176}{2}", "2^3 \\cdot 3^2 \\cdot 779", "x = 123 \\cdot 456", "\\sqrt{56088 \\cdot 56088}", "They are 123*456 of those as you said at first", "123*456 %")),
    Shape("guesses", "0.75", ("3/4", "\\frac34", "-(-3/4)", "75%", "\\frac{15}{20}"), ("1-0.25", "3 \\cdot 0.25", "3 \\cdot \\frac{1}{4}", "50%+25%", "(50+25)%")),
    Shape("guesses", "\\frac{3}{4}", ("0.75", "6/8", "(\\frac34)"), ("\\frac12+\\frac14", "\\frac{1}{2}+\\frac{1}{4}", "1 - 1/4", "\\frac{1+2}{4}", "\\frac{3}{2} \\cdot \\frac{1}{2}")),
    Shape("guesses", "1,000,000", ("10^6", "1 \\times 10^6", "1e6", "1000^2", "2^0 \\times 10^6 = 10^6"), ("1000 \\cdot 1000", "10^3 \\cdot 10^3")),
    Shape("guesses", "50\\%", ("0.5", "1/2", "50"), ("0.2+0.3", "20+30", "20%+30%", "\\frac{100}{2}")),
    Shape("guesses", "x = 50\\%", ("0.5", "x = 0.5", "50%", "x = 50\\%"), ("5", "x = 5")),
    Shape("guesses", "12 \\text{ cm}", ("12 cm",), ("3 \\cdot 4 cm", "(3 \\cdot 4) \\text{ cm}")),
    Shape("guesses", "1, 6", ("6, 1",), ("2-1, 2 \\cdot 3", "1, 2 \\cdot 3")),
    Shape("dashes", "2024-01-01", ("2024-1-1", "It is 2024-01-01.", "2024–01–01"), ("2022", "2024", "2024-01-02", "2024+01-01")),
    Shape("dashes", "3-1", ("3 - 1", "3–1", "The score is 3-1."), ("2", "1-3", "3", "3:1")),
    Shape("dashes", "12/25/2020", ("12/25/2020",), ("12/25", "25/12/2020", "3/12625")),
    # Dollars are no mark: nothing between them, and nothing beside them, is the whole
    Shape("dollars", "$2$ and $3$", ("2 and 3", "2, 3", "$2$ and $3$", "The answer is $3$ and $2$", "So $x=2$ and $x=3$.", "The solutions are $x = 2$, and $x = 3$."), ("2", "3", "$3$", "The answer is $3$", "$2$, $3$ or $4$")),
    Shape("dollars", "\\(2\\) and \\(3\\)", ("2, 3", "\\(3\\) and \\(2\\)"), ("2", "3")),
    Shape("dollars", "$x = 1$ or $x = 2$", ("1, 2", "x=1 \\text{ or } x=2", "$x=1$ or $x=2$"), ("1", "2", "x = 2")),
    Shape("dollars", "$a = 3$, $b = 4$", ("a=3, b=4", "$a=3$ and $b=4$"), ("3", "4", "b = 4")),
    Shape("dollars", "$(1,2)$ and $(3,4)$", ("(1,2),(3,4)", "$(3,4)$, $(1,2)$"), ("(3,4)", "(1,2)", "1,2,3,4")),
    Shape("dollars", "$\\frac{1}{2}$ m", ("0.5 m", "1/2 m", "$0.5$ m", "The length is $0.5$ m."), ("0.5", "0.5 km", "$0.5$ km", "2 m")),
    Shape("dollars", "The area is $12$ cm$^2$.", ("12 cm^2", "$12$ cm$^2$", "It is $12$ square centimeters."), ("12", "12 cm", "$12$ cm")),
    Shape("dollars", "$3$ hours $30$ minutes", ("3 h 30 min", "3 hours and 30 minutes", "$3$ hours and $30$ minutes"), ("30", "30 minutes", "3 hours")),
    Shape("dollars", "-$5$", ("-5", "-$5$"), ("5", "$5$")),
    Shape("dollars", "2$\\sqrt{3}$", ("2\\sqrt{3}", "It is 2$\\sqrt3$."), ("\\sqrt{3}", "2")),
    Shape("dollars", "$x$ = 5", ("5", "x = 5", "$x$ = 5"), ("x", "6")),
    Shape("dollars", "$50$\\%", ("50%", "0.5", "$50$%"), ("5", "5%")),
    Shape("dollars", "Either $3$ or $4$.", ("3 or 4", "$3$ or $4$"), ("3", "4", "$4$")),
    Shape("dollars", "She has $12$ apples.", ("12", "$12$", "12 apples"), ("2", "$12$ or $13$")),
    Shape("dollars", "We get $x=3$, so the sum is $7$.", ("7", "$7$"), ("3", "10")),
    Shape("dollars", "$$x=3$$\n$$y=7$$", ("7", "y = 7"), ("3", "x = 3")),
    Shape("dollars", "7", ("Since $a=3$ and $b=4$, the sum is $7$", "I tried $5$, and then $7$", "The answer is $7$, since $5+2=7$", "It is $7$ as required.", "$7$, as required", "- $7$", "$7$ cm."), ("$5$ or $7$", "$7$, $8$", "The answer is $5$ or $7$", "The answer is $7$ or 8", "$7$ or 8 apples", "$7$; 8", "Thus -$7$", "$6$ cm or $7$ cm")),
    # Dollars about what is left to compute: the result beside it counts
    Shape("dollars", "5", ("The sum $2+3$ is 5.", "\\(2+3\\), which equals 5", "Adding $2+3$ we obtain 5.", "$2+3$ = **5**", "$7-2$ is 5", "The sum is $2+3$.\nSo it is 5 in all.", "The answer is $5$: $2+3$"), ("$2+3$", "The sum $2+3$ is 7.", "$5+0$ or 7", "$2+3$, which is 5 or 7", "$2+3$ is 5x", "$2+3$ is 5!", "$2+3$ is 5^2", "$5$ or $7$ ($2+3$)", "5 or 7 ($2+3$)", "Question 5: $2+3$", "$7$ ($5+0$)", "7 ($5+0$)")),
    Shape("dollars", "16", ("The area is $4 \\times 4$, which is 16.", "The answer is 16 ($4 \\times 4$).", "It is 16 cm ($4 \\times 4$)", "It is $4 \\times 4$ = 16 cm^2", "It is $4 \\times 4$ cm, that is 16 cm.", "$16$ (from $4 \\cdot 4$)", "The answer is 16, since $4 \\cdot 4$ squares", "It is 16, i.e. $4 \\cdot 4$.", "It is 16 because $4 \\cdot 4$"), ("It is 15 or 16, since $4 \\cdot 4$", "The area is $4 \\times 4$.", "It is 16x ($4 \\times 4$)")),
    Shape("dollars", "9", ("the answer is $9$: $3 \\cdot 3$", "$9$ ($3 \\cdot 3$)"), ("$3 \\cdot 3$",)),
    Shape("dollars", "12", ("There are $3 \\cdot 4$ choices, i.e. 12 in all.", "There are 12 ($3 \\cdot 4$) choices."), ("There are $3 \\cdot 4$ choices, i.e. 13 in all.",)),
    Shape("dollars", "\\frac{3}{4}", ("$1-\\frac14$, which is 3/4", "$\\frac{15}{20}$, that is, less than 7"), ("$\\frac{1}{4}$ of 3/4", "$1-\\frac14$, which is 7")),
    Shape("dollars", "7", ("$3+4$ is 7", "It is $3+4$, so 7"), ("$\\frac{15}{20}$, which is 7", "$2^2$, which is 7", "$2 \\cdot \\sqrt{3}$, which is 7")),
    # What cannot be read as mathematics and is none
    Shape("form", "5", ("It is 5", "Total: 5", "First 4, then 5", "The final answer is:\n5", "<answer>5</answer>", "**Final Answer**\n\n\\[ \\boxed{5} \\]", "\\boxed{\\boxed{5}}", "1. Add 2.\n2. The answer is 5 because 2+3=5."), ("", "no idea", "\\boxed{}", "5!", "\\boxed{4}, 5", "\\boxed{5 or 6}", "\\boxed{it is 5 or 6}", "<answer>4</answer> 5", "<answer>5</answer><answer>6</answer>", "The answer is 4 or 5", "5, 6")),
    Shape("form", "[1,2)", ("The interval is [1,2).", "So we get: $[1,2)$"), ("The interval is [1,2].", "The interval [1,2) or (1,2]")),
]  # fmt: skip

UNREADABLE = [
    "\\frac{",
    "$\\frac{1}{$",
    "\\boxed{\\frac{}",
    "(1, \\frac{)",
    "#### \\sqrt{",
    "\\begin{pmatrix} \\frac{ \\end{pmatrix}",
    "$2$ if $n$ is even and $3$ if $n$ is odd",
    "The function is $x^2$ for positive $x$",
    "There are $5$ if the last one counts",
]
"""Expected answers that say nothing, or of which no part is the whole."""
