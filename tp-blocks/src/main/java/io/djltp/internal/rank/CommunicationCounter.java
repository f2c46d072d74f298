package io.djltp.internal.rank;

import io.djltp.collective.TrafficTable;
import io.djltp.internal.collective.AbstractCommunicator;
import io.djltp.internal.collective.FlightRecorder;

import java.util.ArrayList;
import java.util.List;

/**
 * Counts what the ranks of this process communicate, from its creation to its close: by block and
 * direction, in operations and bytes. As PyTorch's {@code CommDebugMode} it is put around what is
 * of interest:
 *
 * <pre>{@code
 * try (CommunicationCounter counter = new CommunicationCounter(trainer.getRanks())) {
 *     EasyTrain.trainBatch(trainer, batch);
 *     trainer.step();
 *     System.out.println(counter.getTable(0));
 * }
 * }</pre>
 *
 * <p>A block has the name of its place in the network, such as {@code 02RowParallelLinear}, and a
 * gradient hook counts for the block that it was made for. Without a counter nothing is counted but
 * the totals of {@code trainer.getCollectiveCounts()}.
 *
 * <p>The first pass of a network is looked at more closely, and may communicate more than those
 * that follow.
 */
public final class CommunicationCounter implements AutoCloseable {

    private final List<TrafficTable> tables = new ArrayList<>();
    private final List<Runnable> ends = new ArrayList<>();

    /**
     * Begins to count.
     *
     * @param ranks the ranks
     */
    public CommunicationCounter(RankPool ranks) {
        for (int i = 0; i < ranks.size(); i++) {
            TrafficTable table = new TrafficTable();
            tables.add(table);
            FlightRecorder recorder =
                    AbstractCommunicator.of(ranks.getContext(i).getWorld()).getRecorder();
            FlightRecorder.Listener listener =
                    (call, size, direction) ->
                            table.add(
                                    call.getIssuer(),
                                    direction,
                                    call.getCollective(),
                                    size,
                                    call.getPayload());
            recorder.addListener(listener);
            ends.add(() -> recorder.removeListener(listener));
        }
    }

    /**
     * Returns what a rank has communicated. To be read while no pass is running.
     *
     * @param localIndex the place of the rank among those of this process
     * @return the table, which goes on counting
     */
    public TrafficTable getTable(int localIndex) {
        return tables.get(localIndex);
    }

    /** Counts no more. */
    @Override
    public void close() {
        ends.forEach(Runnable::run);
    }
}
