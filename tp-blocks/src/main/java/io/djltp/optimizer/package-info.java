/** Contains how parameters are updated: the settings of DJL's optimizers, and state of our own. */
package io.djltp.optimizer;
