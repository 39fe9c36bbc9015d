"""What tests share: real services they run against, never fakes of our own rooms."""
