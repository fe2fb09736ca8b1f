package kafka

// What a transaction can be left without.
const (
	WithoutMember = withoutMember
	WithoutStable = withoutStable
	WithoutEpoch  = withoutEpoch
)

// Without leaves something out of transactions, to see that a test notices.
func Without(c Config, what hole) Config {
	c.Transaction.holes = what
	return c
}
