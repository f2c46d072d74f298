package io.djltp.parameters;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;

import io.djltp.job.Job;
import io.djltp.rank.DeviceMesh;
import io.djltp.rank.ParallelConfig;
import io.djltp.sharding.ShardingStrategy;
import io.djltp.torch.Autograd;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.stream.IntStream;

/** The shards and the checksums of other processes, for the one that saves the model. */
@SuppressWarnings("try") // a scope is used by being open
public final class RemoteShards implements AutoCloseable {

    private static final int CHECKSUMS = -1;
    private static final int CHECKSUMS_WITH_ONE_NAN = -2;

    /** Bytes that are sent in one go. */
    private static final int CHUNK = 1 << 22;

    private final Job job;
    private final ParameterShards shards;
    private final List<Parameter> cut;
    private final DriftCheck driftCheck;
    private final DeviceMesh mesh;
    private final ShardService service;

    /**
     * Creates the source, which is reached when it is asked.
     *
     * @param config the ranks, with their job
     * @param parameters what the ranks hold
     * @param driftCheck the drift check
     */
    public RemoteShards(
            ParallelConfig config, ParallelParameters parameters, DriftCheck driftCheck) {
        job = config.getJob();
        mesh = config.getMesh();
        shards = parameters.getShards();
        this.driftCheck = driftCheck;
        cut = parameters.getCut();
        service = new ShardService(job, config.getTimeout(), this::answer);
    }

    /**
     * Returns what sends the shards of this process.
     *
     * @return the service
     */
    public ShardService getService() {
        return service;
    }

    /**
     * Returns the checksums of the replicas of all ranks, in their order.
     *
     * @return the checksums of the replicas of all ranks, in their order
     */
    public long[] checksums() {
        long[] all = checksums(false);
        return driftCheck.isDifferent(all) ? checksums(true) : all;
    }

    private long[] checksums(boolean oneNaN) {
        long[] own = driftCheck.localChecksums(oneNaN);
        long[] all = new long[own.length * job.getProcesses()];
        System.arraycopy(own, 0, all, own.length * job.getProcess(), own.length);
        service.ask(
                oneNaN ? CHECKSUMS_WITH_ONE_NAN : CHECKSUMS,
                (process, in) -> {
                    for (int i = 0; i < own.length; i++) {
                        all[own.length * process + i] = in.readLong();
                    }
                });
        return all;
    }

    /**
     * Puts the shards of all ranks into their places.
     *
     * @param parameter the parameter
     * @param whole where they go
     */
    void gather(Parameter parameter, NDArray whole) {
        shards.gather(parameter, whole);
        ShardingStrategy strategy = shards.strategyOf(parameter);
        service.ask(
                cut.indexOf(parameter),
                (process, in) -> {
                    for (int i : firstReplicas(process)) {
                        receive(in, strategy, whole, tensorRank(process, i));
                    }
                });
    }

    private void receive(DataInputStream in, ShardingStrategy strategy, NDArray whole, int rank)
            throws IOException {
        Shape shape = strategy.shardShape(whole.getShape(), rank, shards.size());
        try (NDManager scope = whole.getManager().newSubManager();
                Autograd.GradMode mode = Autograd.gradMode(false)) {
            NDArray shard = scope.create(shape, whole.getDataType());
            long step = rows(shard);
            for (long row = 0; row < shape.get(0); row += step) {
                long end = Math.min(row + step, shape.get(0));
                long[] part = shape.getShape().clone();
                part[0] = end - row;
                Shape partShape = new Shape(part);
                int size = Math.toIntExact(partShape.size());
                ByteBuffer bytes = scope.allocateDirect(size * whole.getDataType().getNumOfBytes());
                byte[] read = in.readNBytes(bytes.capacity());
                if (read.length < bytes.capacity()) {
                    throw new EOFException("the connection ended within the weights");
                }
                bytes.put(read).rewind();
                try (NDArray rows = scope.create(bytes, partShape, whole.getDataType())) {
                    shard.set(new NDIndex().addSliceDim(row, end), rows);
                }
            }
            strategy.gather(shard, whole, rank, shards.size());
        }
    }

    /** Returns which ranks of a process send their shards: of replicas it is the first. */
    private int[] firstReplicas(int process) {
        int first = process * job.getLocalRanks();
        return IntStream.range(0, job.getLocalRanks())
                .filter(i -> mesh.getFirstReplica(first + i) == first + i)
                .toArray();
    }

    private int tensorRank(int process, int localRank) {
        return mesh.getCoordinate(process * job.getLocalRanks() + localRank, DeviceMesh.TENSOR);
    }

    private void answer(int question, DataOutputStream out) throws IOException {
        if (question == CHECKSUMS || question == CHECKSUMS_WITH_ONE_NAN) {
            boolean oneNaN = question == CHECKSUMS_WITH_ONE_NAN;
            for (long checksum : driftCheck.localChecksums(oneNaN)) {
                out.writeLong(checksum);
            }
            return;
        }
        for (int i : firstReplicas(job.getProcess())) {
            NDArray shard = shards.get(cut.get(question), i);
            try (Autograd.GradMode mode = Autograd.gradMode(false)) {
                long step = rows(shard);
                for (long row = 0; row < shard.getShape().get(0); row += step) {
                    long end = Math.min(row + step, shard.getShape().get(0));
                    try (NDArray rows = shard.get(new NDIndex().addSliceDim(row, end))) {
                        ByteBuffer bytes = rows.toByteBuffer();
                        byte[] copy = new byte[bytes.remaining()];
                        bytes.get(copy);
                        out.write(copy);
                    }
                }
            }
        }
    }

    /** Returns how many rows go in one chunk. */
    private static long rows(NDArray shard) {
        Shape shape = shard.getShape();
        long row = shape.size() / Math.max(1, shape.get(0)) * shard.getDataType().getNumOfBytes();
        return Math.max(1, CHUNK / Math.max(1, row));
    }

    @Override
    public void close() {
        service.close();
    }
}
