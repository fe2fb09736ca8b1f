// Package service validates service names. The name separates the data of services that share a database, a Redis or a provider.
package service

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var pattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,99}$`)

// Validate returns an error if the name cannot be a service's. The error begins with "Service is".
func Validate(name string) error {
	if pattern.MatchString(name) {
		return nil
	}
	is := strconv.Quote(name)
	if name == "" {
		is = "empty"
	}
	return fmt.Errorf(`Service is %s: want the service's name, which keeps its work apart from that of other services: `+
		`1 to 100 letters, digits, ".", "_" and "-", starting with a letter`, is)
}

// Scoped returns a service's name for something, unique among all services. No service's name contains "/".
func Scoped(service, name string) string { return service + "/" + name }

// ConsoleName returns the service's name in the console's URLs.
func ConsoleName(service string) string {
	name := strings.NewReplacer(".", "-", "_", "-").Replace(strings.ToLower(service))
	if name = name[:min(len(name), 40)]; name == "static" {
		return "static-service"
	}
	return name
}
