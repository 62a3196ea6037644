"""Length predictors."""
