"""One class per kind of server that turns conversations into records; knows no sweep."""
