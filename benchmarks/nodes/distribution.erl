%% The same with two nodes of Erlang's distribution, over TCP on loopback.
-module(distribution).
-export([serve/1, ask/1]).

serve(_) ->
    true = register(server, self()),
    io:format("ready~n"),
    loop().

loop() ->
    receive
        {call, From, Ref, used} -> From ! {Ref, used()}, loop();
        {call, From, Ref, Data} -> From ! {Ref, Data}, loop();
        _ -> loop()
    end.

used() ->
    {Time, _} = statistics(runtime),
    Time.

call(Server, Request) ->
    Ref = monitor(process, Server),
    Server ! {call, self(), Ref, Request},
    receive {Ref, Answer} -> demonitor(Ref, [flush]), Answer end.

repeat(0, _) -> ok;
repeat(Count, Do) -> Do(), repeat(Count - 1, Do).

ask([Node, SizeText, BytesText, ParallelText]) ->
    Size = list_to_integer(SizeText),
    Parallel = list_to_integer(ParallelText),
    Data = binary:copy(<<"x">>, list_to_integer(BytesText)),
    pong = net_adm:ping(list_to_atom(Node)),
    Server = rpc:call(list_to_atom(Node), erlang, whereis, [server]),
    Took = lists:sort([begin
        Began = erlang:monotonic_time(nanosecond),
        call(Server, Data),
        erlang:monotonic_time(nanosecond) - Began
    end || _ <- lists:seq(1, Size div 10)]),
    Each = Size div Parallel,
    Calls = rate(Each * Parallel, fun() ->
        Refs = [element(2, spawn_monitor(fun() -> repeat(Each, fun() -> call(Server, Data) end) end))
            || _ <- lists:seq(1, Parallel)],
        [receive {'DOWN', Ref, process, _, _} -> ok end || Ref <- Refs]
    end),
    Before = used() + call(Server, used),
    Messages = rate(Size, fun() ->
        repeat(Size, fun() -> Server ! {message, Data} end),
        call(Server, used)
    end),
    Used = used() + call(Server, used) - Before,
    io:format("{\"p50\": ~p, \"calls\": ~p, \"messages\": ~p, \"cpu\": ~p}~n",
        [lists:nth(length(Took) div 2, Took) / 1.0e6, Calls, Messages, Used * 1000.0 / Size]),
    halt().

rate(Count, Do) ->
    Began = erlang:monotonic_time(nanosecond),
    Do(),
    Count * 1.0e9 / (erlang:monotonic_time(nanosecond) - Began).
