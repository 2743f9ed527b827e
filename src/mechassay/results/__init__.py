"""Results for people: figures, tables, circuit drawings, and one self-contained HTML page."""
