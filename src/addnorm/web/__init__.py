"""What every local web server here needs: access, limits, errors and event streams."""
