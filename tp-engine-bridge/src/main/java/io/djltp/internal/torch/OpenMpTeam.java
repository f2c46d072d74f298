package io.djltp.internal.torch;

import com.sun.jna.Callback;
import com.sun.jna.CallbackThreadInitializer;
import com.sun.jna.Function;
import com.sun.jna.Native;
import com.sun.jna.Platform;

import io.djltp.internal.libtorch.LibTorchFunctions;

import org.jspecify.annotations.Nullable;

import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.IntConsumer;

/**
 * Runs tasks in the threads among which libtorch divides the operations of the calling thread: its
 * team of OpenMP, in which the calling thread is the first. After an operation these threads wait
 * in a loop for the next one, so that it finds them awake. Java threads beside them would have to
 * share the processors with that loop, and to be woken up for each task.
 *
 * <p>A task is in a parallel region, where each operation has one thread. The threads become
 * daemons of the virtual machine, and end with the thread whose team they are.
 *
 * <p>The functions are those of GNU's OpenMP, which libtorch brings along on Linux.
 */
public final class OpenMpTeam implements AutoCloseable {

    private static final @Nullable OpenMp LIBRARY = OpenMp.find();
    private static final Map<Long, OpenMpTeam> TEAMS = new ConcurrentHashMap<>();
    private static final AtomicLong COUNT = new AtomicLong();
    private static final Region REGION =
            number -> Objects.requireNonNull(TEAMS.get(number)).runPart();

    static {
        Native.setCallbackThreadInitializer(
                REGION, new CallbackThreadInitializer(true, false, "tp-team"));
    }

    private final OpenMp library;
    private final long number = COUNT.incrementAndGet();
    private final AtomicReference<@Nullable Throwable> failure = new AtomicReference<>();
    private volatile @Nullable IntConsumer task;
    private volatile int tasks;

    private OpenMpTeam(OpenMp library) {
        this.library = library;
        TEAMS.put(number, this);
    }

    /** What each thread of a team does: {@code void (*)(void *)}. */
    private interface Region extends Callback {

        /**
         * Runs the part of the calling thread.
         *
         * @param number the number of the team, instead of a pointer
         */
        void run(long number);
    }

    /** The functions that are needed of libtorch's libraries. */
    private record OpenMp(
            Function parallel, // void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned)
            Function threadNumber, // int omp_get_thread_num()
            Function threads, // int omp_get_num_threads()
            Function setThreads, // void omp_set_num_threads(int)
            @Nullable Function productThreads, // int MKL_Set_Num_Threads_Local(int)
            @Nullable Function fewerForProducts) { // void MKL_Set_Dynamic(int)

        static @Nullable OpenMp find() {
            // libtorch is asked, and not a file of OpenMP: JavaCPP may have loaded another one
            if (!Platform.isLinux()
                    || !Platform.is64Bit()
                    || LibTorchFunctions.find("GOMP_parallel") == null) {
                return null;
            }
            return new OpenMp(
                    LibTorchFunctions.get("GOMP_parallel"),
                    LibTorchFunctions.get("omp_get_thread_num"),
                    LibTorchFunctions.get("omp_get_num_threads"),
                    LibTorchFunctions.get("omp_set_num_threads"),
                    LibTorchFunctions.find("MKL_Set_Num_Threads_Local"),
                    LibTorchFunctions.find("MKL_Set_Dynamic"));
        }

        private static int call(Function function, Object... arguments) {
            return function.invokeInt(arguments);
        }
    }

    /**
     * Returns what runs tasks in the team of the thread that calls {@link #run}.
     *
     * @return the team; empty where libtorch has none
     */
    public static Optional<OpenMpTeam> create() {
        return LIBRARY == null ? Optional.empty() : Optional.of(new OpenMpTeam(LIBRARY));
    }

    /**
     * Sets the threads of operations of the calling thread. {@code at::set_num_threads} does the
     * same, and also sets the count with which other threads start.
     *
     * @param count the number of threads
     * @return whether it is set: not where libtorch has none of the functions
     */
    static boolean setThreads(int count) {
        if (LIBRARY == null) {
            return false;
        }
        LIBRARY.setThreads.invokeVoid(new Object[] {count});
        if (LIBRARY.productThreads != null && LIBRARY.fewerForProducts != null) {
            OpenMp.call(LIBRARY.productThreads, count);
            LIBRARY.fewerForProducts.invokeVoid(new Object[] {0});
        }
        return true;
    }

    /**
     * Runs tasks and waits for all of them, also when one has failed. Task i is always that of the
     * same thread, as long as the calling thread and its number of threads stay the same.
     *
     * @param count the number of tasks; if there are fewer threads, a thread has several
     * @param each a task, given its number
     */
    public void run(int count, IntConsumer each) {
        tasks = count;
        task = each;
        try {
            // 0 threads: as many as for any operation of this thread

            library.parallel.invokeVoid(new Object[] {REGION, number, 0, 0});
        } finally {
            task = null; // it holds what it works on
        }
        Throwable first = failure.getAndSet(null);
        if (first instanceof Error e) {
            throw e;
        }
        if (first != null) {
            throw (RuntimeException) first;
        }
    }

    private void runPart() {
        IntConsumer each = Objects.requireNonNull(task);
        Function products = library.productThreads;
        int before = products == null ? 0 : OpenMp.call(products, 1);
        try {
            int threads = OpenMp.call(library.threads);
            for (int i = OpenMp.call(library.threadNumber); i < tasks; i += threads) {
                runTask(i, each);
            }
        } finally {
            if (products != null) {
                OpenMp.call(products, before);
            }
        }
    }

    private void runTask(int i, IntConsumer each) {
        try {
            each.accept(i);
        } catch (RuntimeException | Error e) { // nobody would get it through native code
            Throwable first = failure.compareAndExchange(null, e);
            if (first != null && first != e) {
                first.addSuppressed(e);
            }
        }
    }

    /** Forgets the team. Its threads belong to the thread that has called {@link #run}. */
    @Override
    public void close() {
        TEAMS.remove(number);
    }
}
