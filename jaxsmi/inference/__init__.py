"""Message passing on data, and its asymptotics: state evolution and the free entropy."""
