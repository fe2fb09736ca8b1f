// Package fakekafka is franz-go's fake of Apache Kafka, which in addition ends the sessions of killed members.
package fakekafka

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Cluster is a running fake cluster.
type Cluster struct {
	Addrs []string
	close func()
}

// Start runs the given number of fake brokers. A topic that is created by its first use gets the given number of partitions.
func Start(brokers, partitions int) (*Cluster, error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(brokers), kfake.DefaultNumPartitions(partitions), kfake.AllowAutoTopicCreation())
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		cluster.Close()
		return nil, err
	}
	all := &sessions{cluster: cluster, client: client, groups: map[string]*group{}}
	cluster.ControlKey(int16(kmsg.JoinGroup), all.join)
	cluster.ControlKey(int16(kmsg.Heartbeat), all.heartbeat)
	ctx, cancel := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() { all.watch(ctx) })
	return &Cluster{Addrs: cluster.ListenAddrs(), close: func() {
		cancel()
		watch.Wait()
		client.Close()
		cluster.Close()
	}}, nil
}

// Close ends the cluster.
func (c *Cluster) Close() { c.close() }

// sessions ends the sessions of killed members, which the fake itself does not do for all: a member whose connection breaks while it
// waits in its JoinGroup request has no session that could time out. It would keep its partitions, and nobody would read them.
type sessions struct {
	cluster *kfake.Cluster
	client  *kgo.Client

	mu     sync.Mutex
	groups map[string]*group
}

type group struct {
	session time.Duration        // the longest of its members' timeouts
	seen    map[string]time.Time // by member
}

// rebalance is the longest time a group of the fake waits for its members to rejoin. The fake waits for dead members too, and never
// answers a member that has waited longer than its session timeout, which is at least 6 s.
const rebalance = 3 * time.Second

// join is a control function of the fake. The fake handles the request after it.
func (s *sessions) join(request kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // the order is kfake's
	join := request.(*kmsg.JoinGroupRequest)
	join.RebalanceTimeoutMillis = min(join.RebalanceTimeoutMillis, int32(rebalance/time.Millisecond))
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.groups[join.Group]
	if of == nil {
		of = &group{seen: map[string]time.Time{}}
		s.groups[join.Group] = of
	}
	of.session = max(of.session, time.Duration(join.SessionTimeoutMillis)*time.Millisecond)
	return nil, nil, false
}

// heartbeat is a control function too.
func (s *sessions) heartbeat(request kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // the order is kfake's
	beat := request.(*kmsg.HeartbeatRequest)
	s.mu.Lock()
	defer s.mu.Unlock()
	if group := s.groups[beat.Group]; group != nil {
		group.seen[beat.MemberID] = time.Now()
	}
	return nil, nil, false
}

func (s *sessions) watch(ctx context.Context) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, leave := range s.silent() {
			_, _ = leave.RequestWith(ctx, s.client) // a failed request is repeated at the next tick
		}
	}
}

// silent returns the LeaveGroup requests of members that sent nothing for a session timeout.
func (s *sessions) silent() (leaves []*kmsg.LeaveGroupRequest) {
	s.mu.Lock()
	names := slices.Collect(maps.Keys(s.groups))
	s.mu.Unlock()
	for _, name := range names {
		info := s.cluster.GroupInfo(name) // it waits for the control functions, so s.mu must not be held
		s.mu.Lock()
		leave := s.groups[name].silent(info)
		s.mu.Unlock()
		if len(leave) > 0 {
			request := kmsg.NewPtrLeaveGroupRequest()
			request.Group, request.Members = name, leave
			leaves = append(leaves, request)
		}
	}
	return leaves
}

func (g *group) silent(info *kfake.GroupInfo) (leave []kmsg.LeaveGroupRequestMember) {
	if info == nil || info.State != "Stable" { // a member that waits in a JoinGroup request sends no heartbeats
		clear(g.seen)
		return nil
	}
	for _, m := range info.Members {
		last, known := g.seen[m.MemberID]
		switch {
		case !known:
			g.seen[m.MemberID] = time.Now()
		case time.Since(last) > g.session:
			member := kmsg.NewLeaveGroupRequestMember()
			member.MemberID, member.InstanceID = m.MemberID, m.InstanceID
			leave = append(leave, member)
		}
	}
	return leave
}
