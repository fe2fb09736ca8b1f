package conn

import (
	"fmt"

	"github.com/xdg-go/scram"
)

// scramClient implements sarama.SCRAMClient, for one conversation.
type scramClient struct {
	hash         scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

// Begin implements sarama.SCRAMClient.
func (c *scramClient) Begin(user, password, authzID string) error {
	client, err := c.hash.NewClient(user, password, authzID)
	if err != nil {
		return fmt.Errorf("begin SCRAM: %w", err)
	}
	c.conversation = client.NewConversation()
	return nil
}

// Step implements sarama.SCRAMClient.
func (c *scramClient) Step(challenge string) (string, error) { return c.conversation.Step(challenge) }

// Done implements sarama.SCRAMClient.
func (c *scramClient) Done() bool { return c.conversation.Done() }
