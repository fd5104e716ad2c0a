"""The report as one page of HTML that needs no server and no network; `page` makes it."""
