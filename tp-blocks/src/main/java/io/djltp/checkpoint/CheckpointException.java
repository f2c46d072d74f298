package io.djltp.checkpoint;

import org.jspecify.annotations.Nullable;

import java.io.IOException;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.NoSuchFileException;

/**
 * Why a checkpoint or its folder cannot be used: damaged, incomplete, of another version, in use.
 * The message says which file, and what to do.
 */
public final class CheckpointException extends IOException {

    private static final long serialVersionUID = 1L;

    CheckpointException(String message) {
        super(message);
    }

    CheckpointException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }

    /**
     * Says what could not be done, and why.
     *
     * @param what what could not be done
     * @param cause the reason
     * @return the cause itself if it says so already
     */
    static CheckpointException of(String what, IOException cause) {
        return cause instanceof CheckpointException
                ? (CheckpointException) cause
                : new CheckpointException(what + ": " + reason(cause), cause);
    }

    /** Returns why something could not be read or written, without the name of the file. */
    static String reason(IOException cause) {
        if (cause instanceof AccessDeniedException) {
            return "permission denied";
        } else if (cause instanceof FileAlreadyExistsException exists) {
            return exists.getFile() + " is a file";
        } else if (cause instanceof NoSuchFileException missing) {
            return missing.getFile() + " does not exist, and cannot be made";
        }
        String reason =
                cause instanceof FileSystemException
                        ? ((FileSystemException) cause).getReason()
                        : cause.getMessage();
        return reason == null ? cause.toString() : reason;
    }
}
