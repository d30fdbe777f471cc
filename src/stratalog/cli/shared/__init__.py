"""What several command groups use: options, tables, a connection, records' forms, a store by its URL."""
