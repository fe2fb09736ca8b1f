package conn

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"google.golang.org/api/option"
)

// credentialTypes are the types of files that Google's tools write.
var credentialTypes = []string{"service_account", "external_account", "authorized_user", "impersonated_service_account", "external_account_authorized_user"}

// options returns the client options for Endpoint and CredentialsFile. It returns none with an emulator, which has its own address and no
// accounts.
func (c Config) options() ([]option.ClientOption, error) {
	if os.Getenv("PUBSUB_EMULATOR_HOST") != "" {
		return nil, nil
	}
	var options []option.ClientOption
	if c.Endpoint != "" {
		options = append(options, option.WithEndpoint(c.Endpoint))
	}
	if c.CredentialsFile != "" {
		kind, err := credentialsType(c.CredentialsFile)
		if err != nil {
			return nil, fmt.Errorf("Config.CredentialsFile is %q: %w", c.CredentialsFile, err)
		}
		options = append(options, option.WithAuthCredentialsFile(option.CredentialsType(kind), c.CredentialsFile))
	}
	return options, nil
}

// errKey is returned if the service account's key is not as Google has issued it. The client's own error quotes bytes of the key.
var errKey = errors.New("the file's private_key cannot be read: want the file as it was downloaded")

// credentialsType returns the type of the credentials in a file. Its errors never quote the file.
func credentialsType(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("the file cannot be read: want one that this process can open: %w", err)
	}
	var credentials struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(data, &credentials) != nil {
		return "", errors.New("the file is not JSON: want the key of a service account, or a configuration for workload identity federation")
	}
	if !slices.Contains(credentialTypes, credentials.Type) {
		return "", fmt.Errorf("the file's type is none of %s: want the key of a service account, or a configuration for workload identity federation", strings.Join(credentialTypes, ", "))
	}
	return credentials.Type, nil
}
