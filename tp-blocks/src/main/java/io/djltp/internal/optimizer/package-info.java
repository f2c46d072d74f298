/** Contains the settings and the state of optimizers, by the names of parameters. */
@NullMarked
package io.djltp.internal.optimizer;

import org.jspecify.annotations.NullMarked;
