package conn

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"math"
	"net"
	"net/http/httptest"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
	"pgregory.net/rapid"

	"github.com/millrace-go/millrace/transport/kafka/internal/sequence"
)

// TestTransactionsV2Answer: what kmsg encodes as an answer to EndTxn is read as it was meant, and a part of it is an error.
func TestTransactionsV2Answer(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		response := kmsg.NewPtrEndTxnResponse()
		response.Version = endTxnV2Version
		response.ThrottleMillis = rapid.Int32().Draw(t, "throttle")
		response.ErrorCode = rapid.Int16().Draw(t, "code")
		response.ProducerID = rapid.Int64().Draw(t, "producer ID")
		response.ProducerEpoch = rapid.Int16().Draw(t, "epoch")
		header := []byte{0, 0, 0, 7, 0} // the correlation ID, and no tags
		answer := response.AppendTo(header)
		next, code, err := readEndTxnV2(answer)
		require.NoError(t, err)
		assert.Equal(t, sequence.Identity{ID: response.ProducerID, Epoch: response.ProducerEpoch}, next)
		assert.Equal(t, sarama.KError(response.ErrorCode), code)

		_, _, err = readEndTxnV2(answer[:rapid.IntRange(0, len(answer)-1).Draw(t, "cut")])
		assert.ErrorIs(t, err, sarama.ErrInsufficientData)
	})
}

// peer is a broker that reads requests with kmsg and answers with it, over TLS where encrypted.
func peer(t *testing.T, encrypted bool, options ...kfake.Opt) (*kfake.Cluster, *Link) {
	t.Helper()
	var clientTLS *tls.Config
	if encrypted {
		server := httptest.NewTLSServer(nil) // its certificate is for 127.0.0.1
		defer server.Close()
		clientTLS = &tls.Config{RootCAs: x509.NewCertPool()}
		clientTLS.RootCAs.AddCert(server.Certificate())
		options = append(options, kfake.TLS(&tls.Config{Certificates: server.TLS.Certificates}))
	}
	cluster, err := kfake.NewCluster(append(options, kfake.NumBrokers(1), kfake.SeedTopics(2, "topic"))...)
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	config := Config{Brokers: cluster.ListenAddrs(), ClientID: "test", Version: "2.8.0", TLS: clientTLS, Dial: (&net.Dialer{}).DialContext}
	client, err := New(ctx, config).Client(t.Context(), ctx, func(*sarama.Config) {})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	link := NewLink(client, func() (*sarama.Broker, error) { return client.Leader("topic", 0) }, func() error { return nil })
	t.Cleanup(link.Close)
	return cluster, link
}

// asked has the cluster answer the next request of the key so, and returns where the request will be.
func asked[Request kmsg.Request](cluster *kfake.Cluster, key kmsg.Key, answer func(Request) kmsg.Response) *Request {
	var got Request
	cluster.ControlKey(key.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		got = r.(Request)
		return answer(got), nil, true
	})
	return &got
}

// TestTransactionsV2Requests: kmsg reads in each request of version 2 what was meant, and its answers are understood.
func TestTransactionsV2Requests(t *testing.T) {
	t.Parallel()
	p := Producer{ID: "transactional", Identity: sequence.Identity{ID: math.MaxInt64 - 1, Epoch: math.MaxInt16 - 1}, V2: true}
	endTxn := func(t *testing.T, encrypted bool) {
		t.Helper()
		t.Parallel()
		cluster, link := peer(t, encrypted)
		for _, want := range []struct {
			next   sequence.Identity
			code   *kerr.Error
			commit bool
		}{
			{sequence.Identity{ID: p.Identity.ID, Epoch: math.MaxInt16}, nil, true},
			{sequence.Identity{ID: 1 << 40}, nil, false}, // the epochs are exhausted
			{sequence.Nobody, kerr.ProducerFenced, true},
			{sequence.Nobody, kerr.TransactionAbortable, true},
			{sequence.Identity{ID: 300, Epoch: 300}, nil, true},
		} {
			got := asked(cluster, kmsg.EndTxn, func(r *kmsg.EndTxnRequest) kmsg.Response {
				response := r.ResponseKind().(*kmsg.EndTxnResponse)
				response.ProducerID, response.ProducerEpoch = want.next.ID, want.next.Epoch
				if want.code != nil {
					response.ErrorCode = want.code.Code
				}
				return response
			})
			next, code, err := link.EndTransaction(p, want.commit)
			require.NoError(t, err)
			assert.Equal(t, want.next, next)
			if want.code == nil {
				assert.Equal(t, sarama.ErrNoError, code)
			} else {
				assert.Equal(t, sarama.KError(want.code.Code), code)
			}
			assert.Equal(t, int16(5), (*got).Version)
			assert.Equal(t, p.ID, (*got).TransactionalID)
			assert.Equal(t, []any{p.Identity.ID, p.Epoch}, []any{(*got).ProducerID, (*got).ProducerEpoch})
			assert.Equal(t, want.commit, (*got).Commit)
		}
	}
	t.Run("EndTxn", func(t *testing.T) { endTxn(t, false) })
	t.Run("EndTxn over TLS", func(t *testing.T) { endTxn(t, true) })
	t.Run("TxnOffsetCommit", func(t *testing.T) {
		t.Parallel()
		cluster, link := peer(t, false)
		got := asked(cluster, kmsg.TxnOffsetCommit, func(r *kmsg.TxnOffsetCommitRequest) kmsg.Response {
			response := r.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
			topic := kmsg.NewTxnOffsetCommitResponseTopic()
			topic.Topic = r.Topics[0].Topic
			partition := kmsg.NewTxnOffsetCommitResponseTopicPartition()
			partition.Partition, partition.ErrorCode = 1, kerr.TransactionAbortable.Code
			topic.Partitions = append(topic.Partitions, partition)
			response.Topics = append(response.Topics, topic)
			return response
		})
		instance := "pod"
		code, err := link.CommitOffsets(p, "group", Member{ID: "m", Generation: 9, Instance: &instance}, map[string]map[int32]Position{"topic": {1: {Offset: 1 << 40, Note: "note"}}})
		require.NoError(t, err)
		assert.Equal(t, sarama.KError(kerr.TransactionAbortable.Code), code)
		assert.Equal(t, int16(5), (*got).Version)
		assert.Equal(t, []any{p.ID, "group", p.Identity.ID, p.Epoch, int32(9), "m", &instance},
			[]any{(*got).TransactionalID, (*got).Group, (*got).ProducerID, (*got).ProducerEpoch, (*got).Generation, (*got).MemberID, (*got).InstanceID})
		require.Len(t, (*got).Topics, 1)
		require.Len(t, (*got).Topics[0].Partitions, 1)
		assert.Equal(t, []any{"topic", int32(1), int64(1 << 40), new("note")},
			[]any{(*got).Topics[0].Topic, (*got).Topics[0].Partitions[0].Partition, (*got).Topics[0].Partitions[0].Offset, (*got).Topics[0].Partitions[0].Metadata})
	})
	t.Run("Produce", func(t *testing.T) {
		t.Parallel()
		cluster, link := peer(t, false)
		got := asked(cluster, kmsg.Produce, func(r *kmsg.ProduceRequest) kmsg.Response {
			response := r.ResponseKind().(*kmsg.ProduceResponse)
			topic := kmsg.NewProduceResponseTopic()
			topic.Topic = r.Topics[0].Topic
			partition := kmsg.NewProduceResponseTopicPartition()
			partition.Partition, partition.ErrorCode = 1, kerr.ConcurrentTransactions.Code
			topic.Partitions = append(topic.Partitions, partition)
			response.Topics = append(response.Topics, topic)
			return response
		})
		leader, err := link.client.Leader("topic", 1)
		require.NoError(t, err)
		request := NewProduceRequest(&p)
		request.AddBatch("topic", 1, &sarama.RecordBatch{
			Version: 2, IsTransactional: true, ProducerID: p.Identity.ID, ProducerEpoch: p.Epoch, Records: []*sarama.Record{{Value: []byte("v")}},
		})
		response, err := Produce(leader, link.client.Config(), request)
		require.NoError(t, err)
		assert.Equal(t, sarama.ErrConcurrentTransactions, response.GetBlock("topic", 1).Err)
		assert.Equal(t, int16(12), (*got).Version)
		assert.Equal(t, &p.ID, (*got).TransactionID)
		require.Len(t, (*got).Topics, 1)
		assert.Equal(t, "topic", (*got).Topics[0].Topic)
		var batch kmsg.RecordBatch
		require.NoError(t, batch.ReadFrom((*got).Topics[0].Partitions[0].Records))
		assert.Equal(t, []any{p.Identity.ID, p.Epoch}, []any{batch.ProducerID, batch.ProducerEpoch})
	})
	t.Run("an old broker", func(t *testing.T) {
		t.Parallel()
		cluster, link := peer(t, false, kfake.MaxVersions(kversion.V3_7_0()))
		got := asked(cluster, kmsg.EndTxn, func(r *kmsg.EndTxnRequest) kmsg.Response { return r.ResponseKind() })
		next, code, err := link.EndTransaction(p, true)
		require.NoError(t, err)
		assert.Equal(t, sarama.ErrNoError, code)
		assert.Equal(t, p.Identity, next)
		assert.Less(t, (*got).Version, int16(5))
		code, err = link.CommitOffsets(p, "group", Member{ID: "m"}, map[string]map[int32]Position{"topic": {1: {Offset: 1}}})
		require.NoError(t, err)
		assert.Equal(t, sarama.ErrUnsupportedVersion, code)
	})
}

// TestTransactionsV2Level: what the brokers say of their features.
func TestTransactionsV2Level(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options []kfake.Opt
		level   int16
		want    bool
	}{
		"as it comes":  {level: 2, want: true},
		"downgraded":   {level: 1},
		"not there":    {level: 0},
		"old brokers":  {options: []kfake.Opt{kfake.MaxVersions(kversion.V3_7_0())}, level: -1},
		"some day":     {level: 3, want: true},
		"older by far": {options: []kfake.Opt{kfake.MaxVersions(kversion.V2_3_0())}, level: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, link := peer(t, false, c.options...)
			if c.level >= 0 {
				asked(cluster, kmsg.ApiVersions, func(r *kmsg.ApiVersionsRequest) kmsg.Response {
					cluster.KeepControl()
					response := r.ResponseKind().(*kmsg.ApiVersionsResponse)
					other := kmsg.NewApiVersionsResponseFinalizedFeature()
					other.Name, other.MaxVersionLevel = "metadata.version", 25
					transactions := kmsg.NewApiVersionsResponseFinalizedFeature()
					transactions.Name, transactions.MinVersionLevel, transactions.MaxVersionLevel = "transaction.version", 1, c.level
					response.FinalizedFeaturesEpoch = 7
					response.FinalizedFeatures = append(response.FinalizedFeatures, other, transactions)
					supported := kmsg.NewApiVersionsResponseSupportedFeature()
					supported.Name, supported.MaxVersion = "transaction.version", 2
					response.SupportedFeatures = append(response.SupportedFeatures, supported)
					for key := range int16(kmsg.ApiVersions) + 1 {
						response.ApiKeys = append(response.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: key, MaxVersion: 4})
					}
					return response
				})
			}
			has, err := link.HasV2()
			require.NoError(t, err)
			assert.Equal(t, c.want, has)
		})
	}
}
