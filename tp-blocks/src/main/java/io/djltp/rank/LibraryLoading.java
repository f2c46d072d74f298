package io.djltp.rank;

import io.djltp.job.Job;
import io.djltp.torch.LibTorch;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

/** How a process of a job loads libtorch: it waits for that no longer than the job lives. */
final class LibraryLoading {

    private LibraryLoading() {}

    /**
     * Loads libtorch.
     *
     * <p>The libraries are unpacked once, under a lock that all processes of the machine share. A
     * process that stands still while it has the lock would hold up the others for ever.
     *
     * @param job the job, or {@code null}
     * @throws io.djltp.job.JobFailedException if the job fails before the libraries are loaded
     */
    static void load(Job job) {
        if (job == null) {
            LibTorch.load();
            return;
        }
        CompletableFuture<Void> loaded = new CompletableFuture<>();
        Runnable takeBack = job.onFailure(loaded::completeExceptionally);
        Thread loader = new Thread(() -> load(loaded), "tp-load-libraries");
        loader.setDaemon(true);
        loader.start();
        try {
            loaded.join();
        } catch (CompletionException e) {
            if (e.getCause() instanceof Error error) {
                throw error;
            }
            throw (RuntimeException) e.getCause();
        } finally {
            takeBack.run();
        }
    }

    private static void load(CompletableFuture<Void> loaded) {
        try {
            LibTorch.load();
            loaded.complete(null);
        } catch (RuntimeException | Error e) {
            loaded.completeExceptionally(e);
        }
    }
}
