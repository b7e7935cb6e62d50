"""The round loop, the sites that train and the transports that carry."""
