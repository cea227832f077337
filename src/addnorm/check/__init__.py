"""The check: every allowed combination of parts, held against its plain definition in float64."""
