"""What every other package stands on: errors, files, parameters, the machine."""
