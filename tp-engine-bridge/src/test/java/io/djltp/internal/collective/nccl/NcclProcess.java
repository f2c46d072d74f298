package io.djltp.internal.collective.nccl;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;

import io.djltp.collective.Communicator;
import io.djltp.collective.EveryOperation;
import io.djltp.collective.RankThreads;
import io.djltp.internal.collective.AbstractCommunicator;
import io.djltp.internal.libtorch.LibTorch;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;

/**
 * A process with some ranks of a group: folder of the double, unique id, size, first rank, ranks,
 * time-out in milliseconds, the round in which the process dies, or -1, a folder for all, and how
 * many milliseconds it does something else before it closes.
 */
final class NcclProcess {

    private static final int ROUNDS = 5;

    private NcclProcess() {}

    public static void main(String[] args) throws Exception {
        NcclDouble.load(Path.of(args[0]));
        byte[] id = HexFormat.of().parseHex(args[1]);
        int size = Integer.parseInt(args[2]);
        int first = Integer.parseInt(args[3]);
        List<Device> devices = Collections.nCopies(Integer.parseInt(args[4]), Device.cpu());
        Duration timeout = Duration.ofMillis(Long.parseLong(args[5]));
        int last = Integer.parseInt(args[6]);
        NcclLibrary.load();
        LibTorch.load();
        awaitAll(Path.of(args[7]), args[3], size / devices.size());
        List<Communicator> group =
                new ArrayList<>(NcclCommunicator.create(id, size, first, devices, timeout));
        Throwable[] outcomes =
                RankThreads.outcomes(group, (communicator, manager) -> run(communicator, last));
        Thread.sleep(Long.parseLong(args[8]));
        group.forEach(Communicator::close);
        for (Throwable outcome : outcomes) {
            System.out.println(outcome == null ? "done" : "failed: " + outcome);
        }
        boolean failed = AbstractCommunicator.of(group.get(0)).getFailure().isSet();
        System.out.println(failed ? "closed with a failure" : "closed");
        System.out.println("left " + NcclDouble.settled());
    }

    /** Waits until all processes have started, which takes one of them longer than another. */
    private static void awaitAll(Path folder, String name, int processes) throws Exception {
        Files.createFile(folder.resolve(name));
        while (folder.toFile().list().length < processes) {
            Thread.sleep(10);
        }
    }

    private static void run(Communicator group, int last) {
        DataType[] types = {DataType.FLOAT32, DataType.BFLOAT16, DataType.INT64};
        for (int round = 0; round < ROUNDS; round++) {
            if (round == last) {
                Runtime.getRuntime().halt(9); // as if killed
            }
            // around the double's buffers between processes
            EveryOperation.run(group, types[round % 3], round == 0 ? 70_001 : 500);
            try (Communicator part = group.split(group.getRank() % 2, 0)) {
                EveryOperation.run(part, types[round % 3], 100);
            }
        }
    }
}
