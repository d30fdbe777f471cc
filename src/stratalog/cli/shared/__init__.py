"""Code that several command groups use: options, tables, a connection, record formats, a store by its URL."""
