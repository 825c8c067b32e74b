"""Small trainings whose commands are explained before they are launched."""
