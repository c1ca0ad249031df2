"""What a person sees: verdict text, the page and its data, figures, terminal views, comparisons, the live server."""
