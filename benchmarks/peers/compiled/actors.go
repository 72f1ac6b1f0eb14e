// The workloads in Go: an actor is a goroutine that serves a channel.
//
// `actors WORK PAIRS SIZE` prints its figures as a JSON object. With the work `tcp` it prints the
// port of an echo server, and ends with its standard input; with `udp` it prints its port first.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"
)

const room = 1024 // messages that a mailbox holds before its senders wait

type actor struct {
	mailbox chan any
}

func spawn(handle func(message any) bool) *actor {
	self := &actor{make(chan any, room)}
	go func() {
		for message := range self.mailbox {
			if !handle(message) {
				return
			}
		}
	}()
	return self
}

type request struct {
	payload any
	reply   chan any
}

func (callee *actor) call(payload any, reply chan any) any {
	callee.mailbox <- request{payload, reply}
	return <-reply
}

// -- measuring -----------------------------------------------------------------------------------

func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func timed(work func()) (float64, float64) {
	used, began := cpu(), time.Now()
	work()
	return float64((cpu() - used).Nanoseconds()) / 1e3, float64(time.Since(began).Nanoseconds()) / 1e3
}

func show(figures map[string]float64) {
	text, err := json.Marshal(figures)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}

func measure(count int, work func()) map[string]float64 {
	used, passed := timed(work)
	return map[string]float64{"cpu": used / float64(count), "wall": passed / float64(count)}
}

// -- workloads -----------------------------------------------------------------------------------

func tell(pairs, size int) {
	count := max(1, size/pairs)
	done := make(chan bool)
	var sources []*actor
	for range pairs {
		left := count
		sink := spawn(func(any) bool {
			left--
			if left == 0 {
				done <- true
			}
			return left > 0
		})
		sources = append(sources, spawn(func(message any) bool {
			for range count {
				sink.mailbox <- message
			}
			return false
		}))
	}
	show(measure(count*pairs, func() {
		for _, source := range sources {
			source.mailbox <- "go"
		}
		for range pairs {
			<-done
		}
	}))
}

type ball struct {
	left int
	from *actor
}

func pingPong(pairs, size int) {
	count := max(1, size/pairs)
	done := make(chan bool)
	player := func() *actor {
		var self *actor
		self = spawn(func(message any) bool {
			thrown := message.(ball)
			if thrown.left == 0 {
				done <- true
			} else {
				thrown.from.mailbox <- ball{thrown.left - 1, self}
			}
			return true
		})
		return self
	}
	var firsts, seconds []*actor
	for range pairs {
		firsts, seconds = append(firsts, player()), append(seconds, player())
	}
	show(measure((count+1)*pairs, func() {
		for number, first := range firsts {
			first.mailbox <- ball{count, seconds[number]}
		}
		for range pairs {
			<-done
		}
	}))
}

func call(pairs, size int) {
	count := max(1, size/pairs)
	taken := make(chan []float64)
	var askers []*actor
	for range pairs {
		callee := spawn(func(message any) bool {
			asked := message.(request)
			asked.reply <- asked.payload
			return true
		})
		askers = append(askers, spawn(func(message any) bool {
			times, reply := make([]float64, 0, count), make(chan any, 1)
			for range count {
				before := time.Now()
				callee.call(message, reply)
				times = append(times, float64(time.Since(before).Nanoseconds())/1e3)
			}
			taken <- times
			return false
		}))
	}
	var times []float64
	figures := measure(count*pairs, func() {
		for _, asker := range askers {
			asker.mailbox <- "go"
		}
		for range pairs {
			times = append(times, <-taken...)
		}
	})
	slices.Sort(times)
	figures["p50"], figures["p99"] = times[len(times)/2], times[len(times)*99/100]
	show(figures)
}

func idle(size int) ([]*actor, chan bool) {
	actors, ended := make([]*actor, size), make(chan bool, size)
	for number := range actors {
		// A small mailbox: memory is compared, too.
		self := &actor{make(chan any, 1)}
		actors[number] = self
		go func() {
			<-self.mailbox
			ended <- true
		}()
	}
	return actors, ended
}

func stop(actors []*actor, ended chan bool) {
	for _, each := range actors {
		each.mailbox <- "stop"
	}
	for range actors {
		<-ended
	}
}

func life(size int) {
	var actors []*actor
	var ended chan bool
	spawnCPU, spawnWall := timed(func() { actors, ended = idle(size) })
	stopCPU, stopWall := timed(func() { stop(actors, ended) })
	each := float64(size)
	show(map[string]float64{
		"spawn cpu": spawnCPU / each, "spawn wall": spawnWall / each,
		"stop cpu": stopCPU / each, "stop wall": stopWall / each,
	})
}

func resident() float64 {
	runtime.GC()
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	return float64(now.HeapInuse + now.StackInuse)
}

func crowd(size int) {
	before := resident()
	actors, ended := idle(size)
	time.Sleep(200 * time.Millisecond)
	used := resident() - before
	collect, _ := timed(runtime.GC)
	stopCPU, _ := timed(func() { stop(actors, ended) })
	each := float64(size)
	show(map[string]float64{
		"KiB": used / each / 1024, "collect": collect / 1e3, "stop cpu": stopCPU / each,
	})
}

// -- sockets -------------------------------------------------------------------------------------

type packet struct {
	connection net.Conn
	data       []byte
}

// An actor for each connection: a goroutine reads, the actor answers.
func tcp() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			session := spawn(func(message any) bool {
				got := message.(packet)
				_, err := got.connection.Write(got.data)
				return err == nil
			})
			go func() {
				for {
					buffer := make([]byte, 65536)
					got, err := connection.Read(buffer)
					if err != nil {
						return
					}
					session.mailbox <- packet{connection, buffer[:got]}
				}
			}()
		}
	}()
	bufio.NewReader(os.Stdin).ReadString('\n')
}

func udp(size int) {
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		panic(err)
	}
	if err := socket.SetReadBuffer(1 << 20); err != nil {
		panic(err)
	}
	fmt.Println(socket.LocalAddr().(*net.UDPAddr).Port)
	begun, done := make(chan bool), make(chan bool)
	left := size + 1
	sink := spawn(func(any) bool {
		left--
		if left == size {
			begun <- true
		} else if left == 0 {
			done <- true
		}
		return left > 0
	})
	go func() {
		for {
			buffer := make([]byte, 2048)
			got, _, err := socket.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			sink.mailbox <- buffer[:got]
		}
	}()
	<-begun
	show(measure(size, func() { <-done }))
}

func main() {
	var numbers []int
	for _, text := range os.Args[2:] {
		number, err := strconv.Atoi(text)
		if err != nil {
			panic(err)
		}
		numbers = append(numbers, number)
	}
	switch os.Args[1] {
	case "tell":
		tell(numbers[0], numbers[1])
	case "pingpong":
		pingPong(numbers[0], numbers[1])
	case "call":
		call(numbers[0], numbers[1])
	case "life":
		life(numbers[1])
	case "crowd":
		crowd(numbers[1])
	case "tcp":
		tcp()
	case "udp":
		udp(numbers[0])
	}
}
