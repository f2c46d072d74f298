package io.djltp.internal.libtorch;

import ai.djl.pytorch.engine.PtEngineProvider;
import ai.djl.util.cuda.CudaUtils;

import com.sun.jna.NativeLibrary;
import com.sun.jna.Platform;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * DJL's provider of the engine PyTorch, which DJL loads as a service before it loads the engine.
 *
 * <p>DJL counts GPUs by CUDA's runtime. If a machine has CUDA's runtime, but no driver, DJL would
 * log two warnings in each program. This tells DJL that there is no runtime.
 */
public final class PyTorchProvider extends PtEngineProvider {

    private static final Logger logger = LoggerFactory.getLogger(PyTorchProvider.class);

    /** If it is true, DJL loads no runtime into this process, and asks another process. */
    private static final String FORK = "ai.djl.util.cuda.fork";

    /** CUDA's runtime looks for the driver by this name. */
    private static final String DRIVER = "libcuda.so.1";

    /** Creates a provider. */
    public PyTorchProvider() {
        if (Platform.isLinux() && System.getProperty(FORK) == null && !hasDriver()) {
            logger.debug("There is no {}: DJL is not to look for GPUs", DRIVER);
            System.setProperty(FORK, "true");
            try {
                // what its initialization does not load is not there for this process
                Class.forName(CudaUtils.class.getName());
            } catch (ClassNotFoundException | LinkageError e) {
                logger.debug("DJL looks for GPUs itself", e);
            } finally {
                System.clearProperty(FORK);
            }
        }
    }

    private static boolean hasDriver() {
        try {
            NativeLibrary.getInstance(DRIVER);
            return true;
        } catch (UnsatisfiedLinkError e) {
            return false;
        } catch (LinkageError e) {
            return true; // it is not known
        }
    }
}
