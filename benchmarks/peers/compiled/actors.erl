%% The workloads in Erlang: processes, gen_server calls and gen_tcp/gen_udp in active mode.
%%
%% `erl -noshell -run actors main WORK PAIRS SIZE` prints its figures as a JSON object. With the
%% work `tcp` it prints the port of an echo server, and ends with its standard input.
-module(actors).
-behaviour(gen_server).
-export([main/1, init/1, handle_call/3, handle_cast/2]).

main([Work | Numbers]) ->
    run(Work, [list_to_integer(Number) || Number <- Numbers]),
    halt().

run("tell", [Pairs, Size]) ->
    Count = max(1, Size div Pairs),
    Main = self(),
    Sinks = [spawn_link(fun() -> sink(Count, Main) end) || _ <- lists:seq(1, Pairs)],
    Sources = [spawn_link(fun() -> receive go -> pour(Sink, Count) end end) || Sink <- Sinks],
    measure(Count * Pairs, fun() -> start_and_wait(Sources) end);
run("pingpong", [Pairs, Size]) ->
    Count = max(1, Size div Pairs),
    Main = self(),
    Couples = [
        {spawn_link(fun() -> play(Main) end), spawn_link(fun() -> play(Main) end)}
        || _ <- lists:seq(1, Pairs)
    ],
    measure((Count + 1) * Pairs, fun() ->
        [First ! {Count, Second} || {First, Second} <- Couples],
        wait_for(Pairs)
    end);
run("call", [Pairs, Size]) ->
    Count = max(1, Size div Pairs),
    Main = self(),
    Askers = [
        begin
            {ok, Callee} = gen_server:start_link(?MODULE, [], []),
            spawn_link(fun() -> receive go -> Main ! {done, ask(Callee, Count, [])} end end)
        end
        || _ <- lists:seq(1, Pairs)
    ],
    put(times, []),
    measure(Count * Pairs, fun() ->
        [Asker ! go || Asker <- Askers],
        put(times, lists:append([receive {done, Times} -> Times end || _ <- Askers]))
    end);
run("life", [_, Size]) ->
    {SpawnWall, SpawnCpu, Idle} = timed(fun() ->
        [spawn(fun() -> receive stop -> ok end end) || _ <- lists:seq(1, Size)]
    end),
    Monitors = [monitor(process, Each) || Each <- Idle],
    {StopWall, StopCpu, _} = timed(fun() ->
        [Each ! stop || Each <- Idle],
        [receive {'DOWN', Monitor, process, _, _} -> ok end || Monitor <- Monitors]
    end),
    print([
        {"spawn cpu", SpawnCpu / Size},
        {"spawn wall", SpawnWall / Size},
        {"stop cpu", StopCpu / Size},
        {"stop wall", StopWall / Size}
    ]);
run("crowd", [_, Size]) ->
    Before = erlang:memory(processes),
    All = [spawn(fun() -> receive stop -> ok end end) || _ <- lists:seq(1, Size)],
    After = erlang:memory(processes),
    Monitors = [monitor(process, Each) || Each <- All],
    {_, StopCpu, _} = timed(fun() ->
        [Each ! stop || Each <- All],
        [receive {'DOWN', Monitor, process, _, _} -> ok end || Monitor <- Monitors]
    end),
    print([{"KiB", (After - Before) / Size / 1024}, {"stop cpu", StopCpu / Size}]);
run("tcp", _) ->
    {ok, Listener} = gen_tcp:listen(0, [
        binary, {active, false}, {backlog, 128}, {nodelay, true}, {ip, {127, 0, 0, 1}},
        {buffer, 65536}
    ]),
    {ok, Port} = inet:port(Listener),
    io:format("~b~n", [Port]),
    spawn_link(fun() -> accept(Listener) end),
    io:get_line("");
run("udp", [Size]) ->
    {ok, Socket} = gen_udp:open(0, [binary, {active, 100}, {ip, {127, 0, 0, 1}}, {recbuf, 1 bsl 20}]),
    {ok, Port} = inet:port(Socket),
    io:format("~b~n", [Port]),
    datagrams(1),
    measure(Size, fun() -> datagrams(Size) end).

%% Waiting and measuring.

measure(Count, Work) ->
    {Wall, Cpu, _} = timed(Work),
    print([{"cpu", Cpu / Count}, {"wall", Wall / Count} | percentiles(get(times))]).

timed(Work) ->
    {Cpu0, _} = erlang:statistics(runtime),
    Wall0 = erlang:monotonic_time(nanosecond),
    Result = Work(),
    Wall = erlang:monotonic_time(nanosecond) - Wall0,
    {Cpu, _} = erlang:statistics(runtime),
    {Wall / 1000, (Cpu - Cpu0) * 1000.0, Result}.

percentiles(undefined) -> [];
percentiles(Times) ->
    Sorted = lists:sort(Times),
    At = fun(Part) -> lists:nth(max(1, round(length(Sorted) * Part)), Sorted) / 1000 end,
    [{"p50", At(0.5)}, {"p99", At(0.99)}].

print(Figures) ->
    Text = [io_lib:format("\"~s\": ~f", [Name, float(Value)]) || {Name, Value} <- Figures],
    io:format("{~s}~n", [lists:join(", ", Text)]).

start_and_wait(Sources) ->
    [Source ! go || Source <- Sources],
    wait_for(length(Sources)).

wait_for(0) -> ok;
wait_for(Left) -> receive done -> wait_for(Left - 1) end.

%% The processes.

sink(0, Main) -> Main ! done;
sink(Left, Main) -> receive _ -> sink(Left - 1, Main) end.

pour(_, 0) -> ok;
pour(Sink, Left) -> Sink ! go, pour(Sink, Left - 1).

play(Main) ->
    receive
        {0, _} -> Main ! done, play(Main);
        {Left, Other} -> Other ! {Left - 1, self()}, play(Main)
    end.

ask(_, 0, Times) -> Times;
ask(Callee, Left, Times) ->
    Before = erlang:monotonic_time(nanosecond),
    gen_server:call(Callee, go),
    ask(Callee, Left - 1, [erlang:monotonic_time(nanosecond) - Before | Times]).

init([]) -> {ok, none}.
handle_call(Request, _From, State) -> {reply, Request, State}.
handle_cast(_, State) -> {noreply, State}.

accept(Listener) ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Session = spawn(fun() -> receive go -> inet:setopts(Socket, [{active, true}]), echo(Socket) end end),
    ok = gen_tcp:controlling_process(Socket, Session),
    Session ! go,
    accept(Listener).

echo(Socket) ->
    receive
        {tcp, Socket, Data} -> ok = gen_tcp:send(Socket, Data), echo(Socket);
        _ -> ok
    end.

datagrams(0) -> ok;
datagrams(Left) ->
    receive
        {udp, _, _, _, _} -> datagrams(Left - 1);
        {udp_passive, Socket} -> inet:setopts(Socket, [{active, 100}]), datagrams(Left)
    end.
