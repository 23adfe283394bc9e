"""Tools that draw pages: templates, plots, figures as text."""
