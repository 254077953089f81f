"""The operators' HTTP API, `/api/v1`: what people and scripts may look at and do."""
