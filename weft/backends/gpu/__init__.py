"""What all GPU backends share: memory, streams, graphs and the execution of plans over a vendor's `driver.Driver`. It
knows no vendor: what a device has is in its `Features` and `Limits`.
"""
