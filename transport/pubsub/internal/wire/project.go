package wire

// Project is a Google Cloud project. It names topics and subscriptions.
type Project string

// Topic is the full name of a topic.
func (p Project) Topic(topic string) string { return "projects/" + string(p) + "/topics/" + topic }

// Subscription is the full name of a consumer's subscription to a topic.
func (p Project) Subscription(topic, consumer string) string {
	return p.SubscriptionOf(topic + "." + consumer)
}

// SubscriptionOf is the full name of the subscription of that ID.
func (p Project) SubscriptionOf(id string) string {
	return "projects/" + string(p) + "/subscriptions/" + id
}
