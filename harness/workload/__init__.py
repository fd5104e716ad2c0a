"""From a data set to conversations in order with seeds, and their chat text; knows no model."""
