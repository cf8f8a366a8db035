"""Pages with charts and tables: their content (`document`), as one HTML file (`html_page`), as figures (`figures`)."""
