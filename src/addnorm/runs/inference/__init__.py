"""A trained model on new data: texts, images, sound, series."""
