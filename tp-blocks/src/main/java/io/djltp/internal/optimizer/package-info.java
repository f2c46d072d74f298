/** Contains the settings and the state of optimizers, by the names of parameters. */
package io.djltp.internal.optimizer;
