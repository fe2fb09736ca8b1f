package pubsub

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"cloud.google.com/go/iam/apiv1/iampb"
	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/googleapis/gax-go/v2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace-go/millrace/transport"
	"github.com/millrace-go/millrace/transport/pubsub/internal/setting"
)

// Examine implements transport.Examiner. It looks for message transforms, and whether Pub/Sub may forward dead letters.
func (t *Transport) Examine(ctx context.Context, topic, consumer string) ([]transport.Problem, error) {
	found, s, err := t.lookUp(ctx, topic, consumer)
	if err != nil {
		return nil, err
	}
	all := transforms("topic "+topic, found.GetMessageTransforms())
	if s != nil {
		all = append(all, transforms("subscription "+path.Base(s.Name), s.GetMessageTransforms())...)
		all = append(all, t.forwards(ctx, consumer, s)...)
	}
	return all, nil
}

func transforms(of string, enabled []*pubsubpb.MessageTransform) (all []transport.Problem) {
	for _, name := range setting.Transforms(enabled) {
		all = append(all, transport.Problem{
			Symptom: "a message transform of " + of + " can drop events, or their IDs: " + name,
			Cause:   "it runs in Pub/Sub: an event for which it returns null reaches no consumer, and one whose attributes it removes has no ID, which under a claim makes it a dead letter",
			Remedy:  setting.TransformRemedy,
		})
	}
	return all
}

// forwards examines whether Pub/Sub may forward the subscription's dead letters, as its service agent. That account's rights cannot be
// tested (TestIamPermissions is about the caller's), so it reads the policies of the two resources.
func (t *Transport) forwards(ctx context.Context, consumer string, s *pubsubpb.Subscription) (all []transport.Problem) {
	dead := s.GetDeadLetterPolicy().GetDeadLetterTopic()
	if dead == "" {
		return nil
	}
	for _, needs := range []struct {
		resource, kind, right string
		get                   func(context.Context, *iampb.GetIamPolicyRequest, ...gax.CallOption) (*iampb.Policy, error)
	}{
		{dead, "topic", "publisher", t.client.TopicAdminClient.GetIamPolicy},
		{s.Name, "subscription", "subscriber", t.client.SubscriptionAdminClient.GetIamPolicy},
	} {
		role, of := "roles/pubsub."+needs.right, needs.kind+" "+path.Base(needs.resource)
		policy, err := needs.get(ctx, &iampb.GetIamPolicyRequest{Resource: needs.resource, Options: &iampb.GetPolicyOptions{RequestedPolicyVersion: 3}})
		switch {
		case status.Code(err) == codes.Unimplemented:
			return []transport.Problem{{Symptom: fmt.Sprintf("Whether Pub/Sub may forward dead letters of consumer %s to topic %s could not be asked: there is no IAM here, as in an emulator",
				consumer, path.Base(dead))}}
		case err != nil:
			all = append(all, transport.Problem{Symptom: fmt.Sprintf("Whether Pub/Sub's service agent has %s on %s, which it needs to forward dead letters of consumer %s, could not be asked (it takes pubsub.%ss.getIamPolicy): %s",
				role, of, consumer, needs.kind, cmp.Or(status.Convert(err).Message(), err.Error()))})
		case !grants(policy, needs.right):
			all = append(all, transport.Problem{
				Symptom: fmt.Sprintf("Pub/Sub cannot forward dead letters of consumer %s: its service agent has no %s in the policy of %s", consumer, role, of),
				Cause: fmt.Sprintf("unless it has the role by a policy of the project, a folder, the organization or a group, a message that has failed %d times is delivered again for ever",
					cmp.Or(s.GetDeadLetterPolicy().GetMaxDeliveryAttempts(), minMaxAttempts)),
				Remedy: fmt.Sprintf(`gcloud pubsub %ss add-iam-policy-binding %s --project=%s --role=%s --member="serviceAccount:service-$(gcloud projects describe %s --format='value(projectNumber)')@gcp-sa-pubsub.iam.gserviceaccount.com"`,
					needs.kind, path.Base(needs.resource), strings.Split(needs.resource, "/")[1], role, t.config.ProjectID),
			})
		}
	}
	return all
}

// agent matches the members of a policy that are, or include, the service agent of a project.
var agent = regexp.MustCompile(`^(serviceAccount:service-[0-9]+@gcp-sa-pubsub\.iam\.gserviceaccount\.com|allUsers|allAuthenticatedUsers)$`)

// grants reports whether the policy gives the service agent that right. A role that an organization has made is taken to include it.
func grants(policy *iampb.Policy, right string) bool {
	return slices.ContainsFunc(policy.GetBindings(), func(b *iampb.Binding) bool {
		role, predefined := strings.CutPrefix(b.GetRole(), "roles/")
		return (!predefined || slices.Contains([]string{"pubsub." + right, "pubsub.editor", "pubsub.admin", "editor", "owner"}, role)) &&
			slices.ContainsFunc(b.GetMembers(), agent.MatchString)
	})
}
