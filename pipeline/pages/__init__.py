"""What pages are drawn with: templates, plots, figures as text."""
