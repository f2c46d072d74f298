package io.djltp.collective.mpi;

import io.djltp.collective.GroupFailure;
import io.djltp.torch.LibTorch;

import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.TimeUnit;

/** A process of a job whose process 0 goes on for some seconds when the others have ended. */
final class MpiEnds {

    private MpiEnds() {}

    /**
     * Runs the process.
     *
     * @param args "work" if process 0 ends at last, "hang" if the others should give up before; and
     *     how many seconds it goes on
     * @throws Exception if anything goes wrong
     */
    public static void main(String[] args) throws Exception {
        LibTorch.load();
        MpiWorld world = MpiWorld.start();
        try (MpiCommunicator group =
                MpiCommunicator.create(world, Duration.ofSeconds(40), new GroupFailure())) {
            group.barrier();
        }
        boolean hang = args[0].equals("hang");
        if (world.getRank() == 0) {
            // the JVMs of the others, which mpirun has started as well as this one
            List<ProcessHandle> others =
                    ProcessHandle.current()
                            .parent()
                            .orElseThrow()
                            .children()
                            .filter(p -> p.pid() != ProcessHandle.current().pid())
                            .toList();
            TimeUnit.SECONDS.sleep(Long.parseLong(args[1]));
            boolean ended = others.stream().noneMatch(ProcessHandle::isAlive);
            MpiRun.report(0, "others", ended ? "ended" : "wait");
            MpiRun.report(0, "work", "done");
        }
        if (hang && world.getRank() == 1) {
            long began = System.nanoTime();
            boolean ended = MpiEnd.await(world, Duration.ofSeconds(1));
            double seconds = (System.nanoTime() - began) / 1e9;
            MpiRun.report(1, "end", "" + ended);
            MpiRun.report(1, "end time", String.format(Locale.ROOT, "%.1f", seconds));
            return;
        }
        MpiEnd.withTheProcess(world);
    }
}
