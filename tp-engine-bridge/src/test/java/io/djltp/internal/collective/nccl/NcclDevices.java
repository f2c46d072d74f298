package io.djltp.internal.collective.nccl;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;

import io.djltp.collective.Communicator;
import io.djltp.collective.EveryOperation;
import io.djltp.collective.RankThreads;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;

/** Forms groups on two of eight GPUs, ends them well and badly, and prints which have a context. */
final class NcclDevices {

    private NcclDevices() {}

    public static void main(String[] args) throws Exception {
        NcclDouble.load(Path.of(args[0]));
        run();
        Cuda.use(2);
        run();
        System.out.println("works on " + Cuda.currentOrNone());
    }

    private static void run() throws Exception {
        RankThreads.runAll(
                create(),
                (communicator, manager) -> {
                    EveryOperation.run(communicator, DataType.FLOAT32, 100);
                    Thread.sleep(200); // the threads of the group look
                    communicator.split(0, 0).close();
                });
        List<Communicator> bad = create();
        bad.get(1).abort(new IllegalStateException("on purpose"));
        bad.forEach(Communicator::close);
        int[] used = IntStream.range(0, 8).filter(NcclDouble::hasContext).toArray();
        System.out.println("contexts=" + list(used) + " strays=" + NcclDouble.live().get(4));
    }

    private static List<Communicator> create() {
        return new ArrayList<>(
                NcclCommunicator.create(
                        NcclCommunicator.newUniqueId(),
                        2,
                        0,
                        List.of(Device.gpu(5), Device.gpu(3)),
                        RankThreads.TIMEOUT));
    }

    private static List<Integer> list(int[] numbers) {
        return IntStream.of(numbers).boxed().toList();
    }
}
