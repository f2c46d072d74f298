/** Contains how parameters are updated: the settings of DJL's optimizers, and state of our own. */
@NullMarked
package io.djltp.optimizer;

import org.jspecify.annotations.NullMarked;
