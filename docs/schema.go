// Package docs holds what programs print of the documentation.
package docs

import _ "embed"

// Schema is the JSON schema of a service's configuration.
//
//go:embed millrace.schema.json
var Schema []byte
