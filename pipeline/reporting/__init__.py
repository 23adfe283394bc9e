"""What `report` is made of: the recommendation, the plots, the page and the files beside it."""
