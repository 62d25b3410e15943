def attr(*args, **kwargs):
    return lambda function: function
