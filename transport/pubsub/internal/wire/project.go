package wire

import "strings"

// Project is the ID of a Google Cloud project. Its methods build the full names of topics, subscriptions and schemas.
type Project string

// Topic returns the full name of a topic.
func (p Project) Topic(topic string) string { return "projects/" + string(p) + "/topics/" + topic }

// Subscription returns the full name of a consumer's subscription to a topic.
func (p Project) Subscription(topic, consumer string) string {
	return p.SubscriptionOf(topic + "." + consumer)
}

// SubscriptionOf returns the full name of the subscription with that ID.
func (p Project) SubscriptionOf(id string) string {
	return "projects/" + string(p) + "/subscriptions/" + id
}

// Schema returns the full name of a schema; one that is full already stays.
func (p Project) Schema(name string) string {
	if strings.Contains(name, "/") {
		return name
	}
	return "projects/" + string(p) + "/schemas/" + name
}
