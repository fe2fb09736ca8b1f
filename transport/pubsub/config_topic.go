package pubsub

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
)

// The bounds that Pub/Sub sets.
const (
	minTopicRetention = 10 * time.Minute
	maxTopicRetention = 31 * 24 * time.Hour
	maxLabels         = 64
)

// TopicConfig configures the topics that are published to, subscribed to, or get dead letters. They are applied to
// topics that Millrace creates. Under Update they also change topics that exist; otherwise a difference is logged. A field at
// its default is not compared.
type TopicConfig struct {
	// Labels are labels of the topics, for bills and lists. Other labels of a topic stay. In a file they are one
	// text: name=value,name=value. Default: none.
	Labels Labels

	// Retention is how long a topic keeps its messages, so that subscriptions can seek to a time before they were made: 10 min to
	// 31 days. Default: Pub/Sub's, which keeps messages for subscriptions alone.
	Retention time.Duration

	// StorageRegions are the regions of Google Cloud in which messages may be stored, such as europe-west1. Default: what the
	// organization allows.
	StorageRegions []string

	// KMSKey is the Cloud KMS key that encrypts the messages: projects/…/locations/…/keyRings/…/cryptoKeys/…. Pub/Sub's service
	// agent needs roles/cloudkms.cryptoKeyEncrypterDecrypter on it. Default: "", a key of Google's.
	KMSKey string
}

var (
	regionPattern = regexp.MustCompile(`^[a-z]+(-[a-z0-9]+)+$`)
	keyPattern    = regexp.MustCompile(`^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+$`)
)

// validate reports everything that is wrong, naming fields as those of path.
func (c TopicConfig) validate(path string) error {
	var errs []error
	wrong := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s.%s is %w", path, field, fmt.Errorf(format, args...)))
	}
	if err := c.Labels.validate(); err != nil {
		wrong("Labels", "%q: %w", c.Labels, err)
	}
	if c.Retention != 0 && (c.Retention < minTopicRetention || c.Retention > maxTopicRetention) {
		wrong("Retention", "%s: want %s to %s, or 0 for none", c.Retention, minTopicRetention, maxTopicRetention)
	}
	for i, region := range c.StorageRegions {
		if !regionPattern.MatchString(region) {
			wrong(fmt.Sprintf("StorageRegions[%d]", i), "%q: want a region of Google Cloud, such as europe-west1", region)
		}
	}
	if c.KMSKey != "" && !keyPattern.MatchString(c.KMSKey) {
		wrong("KMSKey", "%q: want projects/…/locations/…/keyRings/…/cryptoKeys/…", c.KMSKey)
	}
	return errors.Join(errs...)
}

// Labels are labels of a topic or a subscription. In a file they are one text, as gcloud has them: team=labour,env=prod.
type Labels map[string]string

var labelPattern = regexp.MustCompile(`^[\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]{0,62}=[\p{Ll}\p{Lo}\p{N}_-]{0,63}$`)

func (l Labels) String() string { return strings.Join(setting.LabelList(l), ",") }

// MarshalText writes the labels as a configuration file has them.
func (l Labels) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads them.
func (l *Labels) UnmarshalText(text []byte) error {
	*l = nil
	if len(text) == 0 {
		return nil
	}
	*l = Labels{}
	for pair := range strings.SplitSeq(string(text), ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if _, twice := (*l)[key]; !ok || twice {
			return fmt.Errorf("%q is no label of its own: want key=value, with commas between, and each key once", pair)
		}
		(*l)[key] = value
	}
	return nil
}

func (l Labels) validate() error {
	if len(l) > maxLabels {
		return fmt.Errorf("want up to %d labels", maxLabels)
	}
	for _, label := range setting.LabelList(l) {
		if !labelPattern.MatchString(label) {
			return fmt.Errorf("%q: want key=value of lower-case letters, digits, \"_\" and \"-\", up to 63 each, the key beginning with a letter", label)
		}
	}
	return nil
}
